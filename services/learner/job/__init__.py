"""One attempt at a job: taking it up, the loop over its steps, and its last word."""
