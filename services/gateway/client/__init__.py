"""A client of the gateway, for the command and for scripts."""
