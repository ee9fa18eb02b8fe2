"""Computer algebra, which may hang, crash or take all memory: only ever inside the pool."""
