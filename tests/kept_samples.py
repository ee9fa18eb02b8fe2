"""What a job's sample store holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from protocol.recipe import Purpose
from protocol.samples import SUFFIX, SampledGroup, SampleFacts, read_facts, read_group


def all_samples(folder: Path) -> Iterator[tuple[SampleFacts, SampledGroup]]:
    """Every record below a folder, in writing order."""
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        with path.open("rb") as facts, path.open("rb") as groups:
            for begin, found in read_facts(facts):
                groups.seek(begin)
                yield found, read_group(groups)


def last_samples(folder: Path) -> dict[str, tuple[SampleFacts, SampledGroup]]:
    """What counts of each key: its last record."""
    return {facts.key: (facts, group) for facts, group in all_samples(folder)}


def fates(folder: Path, purpose: Purpose) -> dict[int, str]:
    """What became of each number in the end."""
    last = [facts for facts, _ in last_samples(folder).values() if facts.purpose is purpose]
    return {facts.number: facts.fate for facts in sorted(last, key=lambda facts: facts.number)}


def counted(fates: dict[int, str]) -> dict[str, int]:
    """How many groups met each fate."""
    return dict(Counter(fates.values()))
