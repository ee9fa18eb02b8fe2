"""The judge: grades every response of a group, and never invents a score."""
