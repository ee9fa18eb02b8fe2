"""Task files: check them, and rewrite their problems so that every answer is an integer."""
