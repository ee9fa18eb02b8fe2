"""The ``weir`` command."""
