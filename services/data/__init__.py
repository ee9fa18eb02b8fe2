"""Task files before a job: imported and checked."""
