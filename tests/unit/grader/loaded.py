"""What a worker has loaded; light, since asking loads this module."""

import sys


def is_loaded(module: str) -> bool:
    return module in sys.modules
