"""The phases of a job, each of which makes it advance when it is due."""
