"""The samples of a job: the tables of its store, and queries."""
