"""The samples of a job: its store as tables, and what they answer."""
