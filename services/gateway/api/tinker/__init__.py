"""Clients of the `tinker` SDK: their sessions are jobs, their calls operations and samples."""
