"""Uploaded task files."""
