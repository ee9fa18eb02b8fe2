"""Three environments for a tiny model: a tool that checks, a game, and an agent script."""
