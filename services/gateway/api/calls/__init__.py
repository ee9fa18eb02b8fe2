"""The front door: files and jobs over REST, progress as events."""
