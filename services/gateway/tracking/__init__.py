"""Experiment trackers, told what jobs tell."""
