"""From tasks to the groups of a step: requested, ingested, logged, selected."""
