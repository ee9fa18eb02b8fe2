"""From tasks to the groups of a step: asked for, taken in, logged, selected."""
