"""Ready-made tasks and models to run Weir on."""
