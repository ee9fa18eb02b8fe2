"""The samples of a job: an index of its store, what it answers, and how a terminal shows it."""
