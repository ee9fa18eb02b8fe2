"""One module per dashboard; each has the dashboard as ``BOARD``."""
