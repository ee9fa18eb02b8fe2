"""The learner on one GPU, on one page: ``python -m tests.gpu.report [PART ...]``.

A part is chosen by a word of its name; without words all are measured, in 25 minutes at most. Each
runs in a process of its own with a limit; one that fails is a row with its error. Models have
random weights. WEIR_REHEARSE=1 tries everything small on a CPU, where numbers say nothing.
"""

from __future__ import annotations

import json
import math
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from services.learner.planning.shapes import BUILT_IN, ModelShape
from tests.architecture.project import ROOT

REHEARSES = os.environ.get("WEIR_REHEARSE") == "1"
PAGE = ROOT / "dist/gpu-report.md"
Json = dict[str, Any]
_MOST_S = 25 * 60
_TOKENS = ("tokens", "longest", "context", "micro_batch_tokens")  # few where a CPU rehearses
_TINY = ModelShape(
    64,
    2,
    4,
    2,
    16,
    128,
    512,
    32768,
    attention_bias=True,
)


@dataclass(frozen=True)
class Figure:
    """A number, the bounds that are expected of it, and where they come from."""

    what: str
    value: float
    unit: str = ""
    least: float = -math.inf
    most: float = math.inf
    source: str = ""
    on_cpus: bool = False  # whether a rehearsal has the same bounds

    @property
    def holds(self) -> bool | None:
        """None: there is nothing to compare."""
        if not self.expected or math.isnan(self.value) or (REHEARSES and not self.on_cpus):
            return None
        return self.least <= self.value <= self.most

    @property
    def expected(self) -> str:
        bounds = [shown(bound) for bound in (self.least, self.most) if math.isfinite(bound)]
        sign = "≥ " if math.isinf(self.most) else "≤ " if math.isinf(self.least) else ""
        return sign + " to ".join(bounds) if bounds else ""


@dataclass(frozen=True)
class Part:
    """A measurement of `tests/gpu/measure.py`."""

    name: str
    what: str
    settings: Json
    model: str = "Qwen/Qwen2.5-3B"  # empty: a tiny one
    limit_s: float = 180


@dataclass(frozen=True)
class Result:
    part: str
    seconds: float
    figures: Sequence[Figure]
    error: str = ""

    @property
    def is_as_expected(self) -> bool:
        return not self.error and all(figure.holds is not False for figure in self.figures)


def _recipe(
    tokens: int,
    stage: int,
    offload: str = "none",
    **training: Any,
) -> Json:
    training = {"micro_batch_tokens": tokens, "recompute_activations": True} | training
    optimizer = {"zero_stage": stage, "offload": offload}
    return {"recipe": {"context": tokens, "training": training, "optimizer": optimizer}}


_SPEED = {"longest": 20480} | _recipe(22528, 1)
_COMPILED = _SPEED | _recipe(22528, 1, compile_layers=True)
_KEPT = _recipe(8192, 1, recompute_activations=False)
# For 80 GB, and 128 GiB on the host; the most useful parts come first.
PARTS = [
    Part("updates", "updates", {}, model=""),
    *(Part(f"attention, {n:,} tokens", "attention", {"tokens": n}) for n in (2048, 8192, 20480)),
    Part("memory, ZeRO-1", "memory", _recipe(22528, 1)),
    Part("speed", "speed", _SPEED, limit_s=300),
    Part("speed, compiled layers", "speed", _COMPILED, limit_s=420),
    Part("publish", "publish", _recipe(8192, 1)),
    Part("memory, ZeRO-3", "memory", _recipe(22528, 3)),
    Part("memory, activations kept", "memory", _KEPT, "Qwen/Qwen2.5-1.5B-Instruct"),
    Part("memory, AdamW on the host", "memory", _recipe(8192, 2, "optimizer")),
]


def measured(part: Part, models: Path, left_s: float) -> Result:
    """Measure a part; ``models`` is the folder of the models that parts share."""
    began = time.monotonic()
    is_tiny = REHEARSES or not part.model
    settings = {"shape": vars(_TINY if is_tiny else BUILT_IN[part.model])}
    settings |= {"model": str(models / ("tiny" if is_tiny else part.model.replace("/", "-")))}
    settings |= _small(part.settings) if REHEARSES else part.settings
    command = [sys.executable, "-m", "tests.gpu.measure", part.what, json.dumps(settings)]
    limit_s = part.limit_s * (5 if REHEARSES else 1)  # a machine that rehearses may be busy
    output = _last_line(command, max(0, min(limit_s, left_s)))
    figures = [Figure(**figure) for figure in output.get("figures", [])]
    return Result(part.name, time.monotonic() - began, figures, output.get("error", ""))


def _small(settings: Mapping[str, Any]) -> Json:
    return {
        name: _small(v) if isinstance(v, dict) else v // 64 if name in _TOKENS else v
        for name, v in settings.items()
    }


def _last_line(command: Sequence[str], limit_s: float) -> Json:
    """The JSON that a command prints last, or why there is none."""
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as child:
        try:
            printed, _ = child.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            return {"error": f"no result within {limit_s:.0f} s"}
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # its compilers, too
    try:
        return json.loads(printed.splitlines()[-1])
    except (IndexError, ValueError):
        return {"error": f"its process ended with {child.returncode} and printed no result"}


def page(head: str, results: Sequence[Result]) -> str:
    """Markdown: a row for each figure, and for each part that failed."""
    columns = ("part", "", "measured", "expected", "holds", "source")
    rows = [columns, ("---",) * len(columns)]
    for result in results:
        name = f"{result.part} ({result.seconds:.0f} s)"
        if result.error:
            words = " ".join(result.error.replace("|", "¦").split())[:300]
            rows.append((name, "failed", words, "", "**no**", ""))
        for figure in result.figures:
            value = f"{shown(figure.value)} {figure.unit}".strip()
            holds = {True: "yes", False: "**no**", None: ""}[figure.holds]
            rows.append((name, figure.what, value, figure.expected, holds, figure.source))
            name = ""
    return "\n".join([head, "", *(f"| {' | '.join(row)} |" for row in rows), ""])


def shown(value: float) -> str:
    if math.isnan(value):
        return "unknown"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _head() -> str:
    """Title and machine.

    Raises:
        OSError: if there is no driver of a GPU.
    """
    machine = "no GPU: a rehearsal, whose numbers say nothing"
    if not REHEARSES:
        query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version"]
        lines = subprocess.check_output([*query, "--format=csv,noheader"], text=True).splitlines()
        machine = "{}, {}, driver {}".format(*lines[0].split(", "))
    packages = [f"{name} {version(name)}" for name in ("torch", "transformers", "deepspeed")]
    return (
        f"# The learner on one GPU\n\n{datetime.now(UTC):%Y-%m-%d}: {machine}; "
        f"{', '.join(packages)}; Python {platform.python_version()}, {os.cpu_count()} processors."
    )


def main(words: Sequence[str]) -> int:
    """Measure, write the page after each part, print it; returns how many were not as expected."""
    chosen = [part for part in PARTS if not words or any(word in part.name for word in words)]
    if not chosen:
        print(f"no such part; there are: {'; '.join(part.name for part in PARTS)}")
        return 2
    head = _head()
    results = []
    end = time.monotonic() + _MOST_S
    PAGE.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as models:
        for part in chosen:
            print(f"{part.name} ...", file=sys.stderr, flush=True)
            results.append(measured(part, Path(models), end - time.monotonic()))
            PAGE.write_text(page(head, results), encoding="utf-8")
    print(page(head, results))
    return sum(not result.is_as_expected for result in results)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
