"""The vocabulary that Weir's services share: messages, recipe, streams, exchange, weights."""
