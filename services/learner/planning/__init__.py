"""The computations of ``weir plan``: files, memory, time, warnings. Loads no model."""
