"""What the papers claim, in miniature: registered before it is run, and tested over seeds."""
