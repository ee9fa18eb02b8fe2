"""``deploy/runbooks.md`` as a dashboard, so that a panel can link to it without naming a host."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

_SECTION = re.compile(r"^## (\w+)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
UID = "weir-runbooks"


@cache
def runbooks() -> dict[str, str]:
    """What to do, in Markdown, by the name of the alert, in the order of the document."""
    document = Path(__file__).parents[1] / "runbooks.md"
    return {name: body.strip() for name, body in _SECTION.findall(document.read_text("utf-8"))}


def link_to(alert: str) -> str:
    """The address of an alert's runbook, within Grafana.

    Raises:
        KeyError: if `deploy/runbooks.md` has no section of that name.
    """
    if alert not in runbooks():
        raise KeyError(f"deploy/runbooks.md has no section {alert}; write it")
    return f"/d/{UID}?viewPanel={list(runbooks()).index(alert) + 1}"
