"""``python -m services.gateway.cli``: the ``weir`` command."""

import sys

from services.gateway.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
