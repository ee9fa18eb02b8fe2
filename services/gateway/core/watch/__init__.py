"""The watchdog, and metrics of jobs and streams."""
