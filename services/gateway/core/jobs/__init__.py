"""Jobs: submission, state, trials of graders, results."""
