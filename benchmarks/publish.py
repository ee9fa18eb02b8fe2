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
    "during its next step": ["announce"],
    "fetched and verified while the engine samples": ["fetch"],
    "requests wait": ["load"],
    "until the new policy samples": ["write", "announce", "fetch", "load"],
}
WIDTH = 1024
INNER = 4096
WARM_UP = 2  # rounds of each way that allocate memory and are not measured


def write_model(folder: Path, gigabytes: float) -> None:
    """Write a random bfloat16 model of about this size."""
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
    """One model, its learner and its engine, and the seconds of each phase of each way."""

    def __init__(self, root: Path, memory: Path) -> None:
        self.root = root
        self.memory = memory
        self.disk = root / "disk"
        self.team = Team()
        self.engine: Engine | None = None
        self.slots = Slots(memory / "learner")
        self.chain = Chain(self.disk)
        self.seconds: dict[tuple[str, str], list[float]] = defaultdict(list)
        self.megabytes: dict[str, float] = {}

    @contextmanager
    def timed(self, way: str, phase: str) -> Iterator[None]:
        """Measure a phase."""
        start = time.monotonic()
        yield
        self.seconds[way, phase].append(time.monotonic() - start)

    async def compare(self, gigabytes: float, rounds: int) -> None:
        """Publish in each way."""
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
            for number in range(WARM_UP + rounds):
                self.step()
                folder = weights.version_folder("job", attempt, number)
                publish = self.publish_folder if way == "folder" else self.publish_slot
                await self.load(way, fetcher, await publish(way, folder))
            fetcher.close()
        assert self.engine is not None
        self.engine.shut_down()
        await self.team.leave()

    def step(self) -> None:
        """Change a hundredth of the weights, like a step in bfloat16."""
        trainer = self.team._rank.trainer
        assert trainer is not None
        with torch.no_grad():
            for parameter in trainer.models.policy.module.parameters():
                parameter.view(-1)[::100] += 0.25

    async def publish_folder(self, way: str, folder: str) -> PolicyVersion:
        """Publish before the next step."""
        staging = self.disk / "staging"
        with self.timed(way, "write"):
            await self.team.export(staging)
            digest = weights.write(self.disk, folder, lambda target: _move(staging, target))
        self.seconds[way, "announce"].append(0.0)
        self.megabytes[way] = _megabytes(self.disk / folder)
        return _version(folder, digest)

    async def publish_slot(self, way: str, folder: str) -> PolicyVersion:
        """Copy into memory before the next step, and publish during it."""
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

    async def load(self, way: str, fetcher: Fetcher, policy: PolicyVersion) -> None:
        """Fetch a version and load it into the engine."""
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
        """Return the median seconds of all these phases together."""
        rounds = zip(*(self.seconds[way, phase][WARM_UP:] for phase in phases), strict=True)
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
    cells = [value(way) for way in ("folder", "memory", "delta")]
    return f"| {name} | {' | '.join(cells)} |"


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
        redirect_stdout(sys.stderr),  # DeepSpeed prints to standard output
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
