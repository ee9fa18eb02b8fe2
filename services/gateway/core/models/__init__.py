"""Models: those that a job may start from, and those that jobs have made."""
