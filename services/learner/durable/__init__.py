"""What outlives an attempt: checkpoints, published weights, and the sample store."""
