"""The routes of files, jobs and models."""
