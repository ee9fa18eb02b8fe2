"""A client of the gateway: the ``weir`` command, and ``WeirClient`` for scripts."""
