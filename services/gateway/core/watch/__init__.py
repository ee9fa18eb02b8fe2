"""The gateway's eyes: what the jobs do and how the streams fill, as metrics."""
