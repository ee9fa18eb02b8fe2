"""The samples of a job: an index of its store, and what it answers."""
