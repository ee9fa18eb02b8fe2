"""``weir grade``: the grader without a stack, on a file."""
