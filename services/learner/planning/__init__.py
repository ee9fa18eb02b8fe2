"""What ``weir plan`` computes: memory, seconds, files, warnings. Loads no model, starts nothing."""
