"""From a step to the next policy's first token: ``python -m benchmarks.publish``.

Medians of a random model that one rank publishes and a real engine loads: as a synced folder on the
disk, through memory, and as the changes since the last version (a hundredth of the words).
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import torch
from protocol import weights
from protocol.messages import PolicyVersion
from transformers import Qwen2Config, Qwen2ForCausalLM

from services.learner.durable.publish import Chain, Slots
from services.learner.training.engine import init_ranks, leave_ranks
from services.learner.training.ranks import Team
from services.rollout.engine import Engine
from services.rollout.fetching import Fetcher, verified_shape
from services.rollout.settings import EngineSettings
from tests.builders import a_recipe
from tests.engine.conftest import make_tokenizer
from tests.inline_prompts import InlinePrompts

PHASES = {
    "the learner waits": ["write"],
    "behind its next step": ["announce"],
    "fetched and verified while the engine samples": ["fetch"],
    "requests wait": ["load"],
    "until the new policy samples": ["write", "announce", "fetch", "load"],
}
WIDTH, INNER = 1024, 4096


def write_model(folder: Path, gigabytes: float) -> None:
    """A random model in bfloat16, of about so many bytes."""
    layer_bytes = 2 * (4 * WIDTH**2 + 3 * WIDTH * INNER)
    config = Qwen2Config(
        vocab_size=64,
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=max(1, round(gigabytes * 1e9 / layer_bytes)),
        num_attention_heads=16,
        num_key_value_heads=16,
        max_position_embeddings=256,
    )
    Qwen2ForCausalLM(config).bfloat16().save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)


class Bench:
    """One model, its learner and its engine, and what each phase of each way took."""

    def __init__(self, root: Path, memory: Path) -> None:
        self.root, self.memory, self.disk = root, memory, root / "disk"
        self.team = Team()
        self.engine: Engine | None = None
        self.slots, self.chain = Slots(memory / "learner"), Chain(self.disk)
        self.seconds: dict[tuple[str, str], list[float]] = defaultdict(list)
        self.megabytes: dict[str, float] = {}

    @contextmanager
    def timed(self, way: str, phase: str) -> Iterator[None]:
        """Note how long a phase takes."""
        began = time.monotonic()
        yield
        self.seconds[way, phase].append(time.monotonic() - began)

    async def compare(self, gigabytes: float, rounds: int) -> None:
        """Publish by each way in turn; the first rounds, which find memory, do not count."""
        model = self.root / "model"
        write_model(model, gigabytes)
        await self.team.open(model, a_recipe(model={"path": str(model), "dtype": "bfloat16"}))
        roots = {
            "folder": self.disk,
            "memory": self.memory / "learner",
            "delta": self.memory / "elsewhere",
        }
        for attempt, (way, nearby) in enumerate(roots.items(), start=1):
            fetcher = Fetcher(self.disk, nearby)
            for number in range(rounds + 2):
                self.step()
                folder = weights.version_folder("job", attempt, number)
                publish = self.by_folder if way == "folder" else self.by_slot
                await self.take(way, fetcher, await publish(way, folder))
            fetcher.close()
        assert self.engine is not None
        self.engine.shut_down()
        await self.team.leave()

    def step(self) -> None:
        """What a step does to bfloat16 weights: a hundredth of them changes."""
        trainer = self.team._rank.trainer
        assert trainer is not None
        with torch.no_grad():
            for parameter in trainer.models.policy.module.parameters():
                parameter.view(-1)[::100] += 0.25

    async def by_folder(self, way: str, folder: str) -> PolicyVersion:
        """All of it holds up the next step."""
        staging = self.disk / "staging"
        with self.timed(way, "write"):
            await self.team.export(staging)
            digest = weights.write(self.disk, folder, lambda target: _move(staging, target))
        self.seconds[way, "announce"].append(0.0)
        self.megabytes[way] = _megabytes(self.disk / folder)
        return _version(folder, digest)

    async def by_slot(self, way: str, folder: str) -> PolicyVersion:
        """Only the copy into memory holds up the next step."""
        before = self.slots.newest
        with self.timed(way, "write"):
            slot = self.slots.take(folder)
            await self.team.publish(slot.path, slot.number)
        with self.timed(way, "announce"):
            digest = self.slots.finish(slot, folder)
            if way == "delta":
                self.chain.add(slot.path, before.path if before else None, f"{folder}.link")
        links = self.chain.links if way == "delta" else ()
        self.megabytes[way] = _megabytes(self.disk / links[-1] if links else slot.path)
        return _version(folder, digest, links)

    async def take(self, way: str, fetcher: Fetcher, policy: PolicyVersion) -> None:
        """The rollout's half."""
        with ExitStack() as reading:
            with self.timed(way, "fetch"):
                folder = reading.enter_context(fetcher.fetched(policy))
                verified_shape(folder, policy.digest)
            if self.engine is None:
                settings = EngineSettings(dtype="bfloat16", max_context=256)
                self.engine = await Engine.start(InlinePrompts(), folder, "1.0", settings)
            with self.timed(way, "load"):
                await self.engine.load(folder, f"1.{policy.number}", keep_kv=False)

    def median(self, way: str, phases: list[str]) -> float:
        """Of the sum of some phases, in seconds."""
        rounds = zip(*(self.seconds[way, phase][2:] for phase in phases), strict=True)
        return statistics.median(map(sum, rounds))


def _version(folder: str, digest: str, links: tuple[str, ...] = ()) -> PolicyVersion:
    number = int(folder.rpartition(".")[2])
    return PolicyVersion(
        job_id="job", attempt=1, number=number, folder=folder, digest=digest, links=links
    )


def _move(source: Path, target: Path) -> None:
    for path in source.iterdir():
        path.rename(target / path.name)


def _megabytes(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.iterdir()) / 1e6


def _row(name: str, value: Callable[[str], str]) -> str:
    return f"| {name} | " + " | ".join(value(way) for way in ("folder", "memory", "delta")) + " |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", default="/dev/shm", help="a folder in memory")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    init_ranks()
    with (
        redirect_stdout(sys.stderr),  # what DeepSpeed prints is no part of the table
        tempfile.TemporaryDirectory() as root,
        tempfile.TemporaryDirectory(dir=options.memory) as memory,
    ):
        bench = Bench(Path(root), Path(memory))
        asyncio.run(bench.compare(options.gigabytes, options.rounds))
    leave_ranks()
    print("| | folder | memory | delta |\n|---|---|---|---|")
    for name, phases in PHASES.items():
        print(_row(name, lambda way, of=phases: f"{bench.median(way, of):.3f} s"))
    print(_row("moved", lambda way: f"{bench.megabytes[way]:.0f} MB"))


if __name__ == "__main__":
    main()
