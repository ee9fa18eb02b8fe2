"""``weir sft``: supervised learning on the solutions of a task file, before any reinforcement."""
