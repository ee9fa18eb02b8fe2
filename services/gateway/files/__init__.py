"""Uploaded files of tasks."""
