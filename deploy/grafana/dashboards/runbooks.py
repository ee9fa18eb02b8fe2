"""What to do when an alert fires: ``deploy/runbooks.md``, one panel per alert."""

from __future__ import annotations

from deploy.grafana.board import board
from deploy.grafana.panels import prose
from deploy.grafana.runbooks import UID, runbooks

BOARD = board(
    UID,
    "Runbooks",
    "What to do when an alert fires. The text is that of deploy/runbooks.md.",
    ("", [prose(name, text) for name, text in runbooks().items()]),
)
