"""A module that ends whoever imports it."""

import sys

sys.exit("nobody imports this")
