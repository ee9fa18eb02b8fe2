"""The vocabulary that Weir's services share: messages, recipe, streams, exchange, weights."""

__version__ = "0.1.0"
