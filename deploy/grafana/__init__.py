"""The dashboards, as code. ``python -m deploy.grafana`` writes them to ``generated/``."""
