"""The vocabulary that Weir's services share: messages, recipe, streams, exchange, weights."""

__version__ = "0.2.0"
# Of stored records and messages: it grows with every change of their fields, and no release reads
# those of another version.
STORED_VERSION = 2
