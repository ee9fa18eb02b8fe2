"""Regular expressions mean the same on every Python that is supported."""

import re

from tests.architecture.project import MODULES, name_of

# Before 3.11.5 a possessive or atomic group could fail to match what it should; `[0-9]++` is sound.
POSSESSIVE_GROUP = re.compile(r"\)(?:[*+?]|\{[0-9,]+\})\+[^ =+]|\(\?>")


def test_no_group_is_possessive() -> None:
    own = "tests/architecture/test_patterns.py"
    found = [
        f"{name_of(path)}:{number}"
        for path in MODULES
        if name_of(path) != own
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if POSSESSIVE_GROUP.search(line)
    ]
    assert found == []
