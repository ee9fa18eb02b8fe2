"""The tiny arithmetic task family of the demo, and the tiny base model that learns it."""
