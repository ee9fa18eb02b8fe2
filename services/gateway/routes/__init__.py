"""The routes of files, jobs, models and graders."""
