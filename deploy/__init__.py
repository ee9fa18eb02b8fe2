"""Where Weir runs: as processes on one machine, in containers. Starts services, imports none."""
