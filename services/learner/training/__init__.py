"""From graded groups to better weights: samples, micro-batches, DeepSpeed, and all ranks alike."""
