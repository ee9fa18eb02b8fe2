"""What ranks go through: sums in bfloat16, numbers that are not finite, full memory, lost ranks."""

from __future__ import annotations

import asyncio
import errno
import math
import os
import re
import resource
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from deepspeed.utils import safe_get_full_grad
from protocol.recipe import Model, Optimizer
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from benchmarks import training_memory
from services.learner.planning.footprint import limit_micro_batches
from services.learner.sft.__main__ import main as sft_main
from services.learner.training.attention import PACKED
from services.learner.training.batching import collate, largest_micro_batches
from services.learner.training.engine import DTYPES, Engine, FrozenModel, init_ranks, loading
from services.learner.training.models import Policy
from services.learner.training.ranks import Order, Rank, Team
from services.learner.training.samples import Measured
from tests.builders import a_recipe
from tests.engine.train_some_steps import recipe_of, samples_of_step

SIZE, PARTS = 8, 3
SPLITS = [(stage, "none") for stage in range(4)] + [(stage, "optimizer") for stage in (1, 2, 3)]
SPLITS += [(3, "all")]
Loss = Callable[[Tensor], Tensor]
Lead = Callable[[Team], Coroutine[Any, Any, list[str]]]
BAD: list[Loss] = [
    lambda out: out.sum() * math.nan,
    lambda out: out.sum() + math.inf,  # its gradient is finite
    lambda out: (out * 0).sum().sqrt(),  # is 0, its gradient is not finite
]
ROOM = 48 * 2**20
SMALL, LARGE = 1024, 65536  # tokens of a micro-batch
TOO_LARGE = {"micro_batch_tokens": LARGE, "groups_per_step": 128}


def accumulate(
    size: int = 64,
    parts: int = 256,
) -> dict[str, float]:
    """How far gradients of many micro-batches in bfloat16 are from the exact one, relatively.

    By ZeRO stage and offload, in the Frobenius norm.
    """
    init_ranks()
    return {
        f"{stage} {offload}": _error_at(stage, offload, size, parts)
        for stage, offload in SPLITS
        if stage > 0
    }


def _error_at(stage: int, offload: str, size: int, parts: int) -> float:
    engine = _an_engine("bfloat16", stage, offload, size)
    inputs, weights = torch.randn(2, parts, size).to(torch.bfloat16)
    exact = weights.double().T @ inputs.double()
    gradients: list[Tensor | None] = []
    step = engine._engine.step

    def look_and_step() -> None:
        gradients.append(safe_get_full_grad(next(engine.module.parameters())))
        step()

    engine._engine.step = look_and_step
    engine.update(range(parts), lambda i: (engine(inputs[i : i + 1]) * weights[i]).float().sum())
    assert gradients[0] is not None
    return ((gradients[0].double() - exact).norm() / exact.norm()).item()


def skip_updates() -> list[dict[str, Any]]:
    """Updates of which some are rehearsed, or have a loss or a gradient that is not finite.

    That is so in one part, on one rank; a last one's gradient differs over ranks. Of each rank:
    from dtype, ZeRO stage and offload to what the updates left behind.
    """
    init_ranks()
    outcomes = {
        f"{dtype} {stage} {offload}": _left_behind(dtype, stage, offload)
        for dtype in ("float32", "bfloat16")
        for stage, offload in SPLITS
        if dtype == "float32" or stage > 0
    }
    return _gather(outcomes)


def _gather(value: Any) -> list[Any]:
    """The values of all ranks."""
    values = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(values, value)
    return values


def _left_behind(dtype: str, stage: int, offload: str) -> dict[str, Any]:
    engine, undisturbed = (_an_engine(dtype, stage, offload) for _ in range(2))
    with engine.rehearsing():
        finite = [_update(engine, dtype, 2)]
    for each in (engine, undisturbed):
        assert _update(each, dtype, seed=1)
    states = [_all_of(engine)]
    for bad in BAD:
        finite.append(_update(engine, dtype, 2, bad))
        states.append(_all_of(engine))
    for each in (engine, undisturbed):
        assert _update(each, dtype, seed=3)
    first, *later = states
    return {
        "finite": finite,
        "changed": [not all(map(torch.equal, first, state)) for state in later],
        "learned": not all(map(torch.equal, first, _all_of(engine))),
        "as undisturbed": all(map(torch.equal, _all_of(undisturbed), _all_of(engine))),
        "updates": engine.updates,
        "norm over ranks": _norm_over_ranks(engine, dtype),
    }


def _an_engine(
    dtype: Any,
    stage: Any,
    offload: Any,
    size: int = SIZE,
) -> Engine:
    torch.manual_seed(0)
    module = nn.Linear(
        size,
        size,
        bias=False,
        dtype=DTYPES[dtype],
    )
    settings = Optimizer(zero_stage=stage, offload=offload, learning_rate=0.01, warmup_steps=3)
    return Engine(module, settings, Model(path="none", dtype=dtype))


def _update(
    engine: Engine,
    dtype: str,
    seed: int,
    bad: Loss | None = None,
) -> bool:
    """Whether the norm was finite."""
    inputs = torch.randn(
        PARTS,
        2,
        SIZE,
        generator=torch.Generator().manual_seed(seed),
    )
    is_last = torch.distributed.get_rank() == torch.distributed.get_world_size() - 1

    def compute_loss(part: int) -> Tensor:
        out = engine(inputs[part].to(DTYPES[dtype])).float()
        return bad(out) if bad and is_last and part == 1 else out.square().sum()

    return math.isfinite(engine.update(range(PARTS), compute_loss))


def _all_of(engine: Engine) -> list[Tensor]:
    """Copies of the parameters, and of whatever this rank's optimizer holds."""
    optimizer = engine._engine.optimizer.state_dict()
    return [
        tensor.clone()
        for tensor in _tensors_in(
            [engine.gather_state(dict(engine.module.named_parameters())), optimizer]
        )
    ]


def _tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors_in(item)


def _norm_over_ranks(engine: Engine, dtype: str) -> float:
    """Of a gradient that is 256 on one rank and 1 on the other: bfloat16 has no 257."""
    first = torch.eye(1, SIZE, dtype=DTYPES[dtype])
    size = 256.0 if torch.distributed.get_rank() == 0 else 1.0
    return engine.update([first], lambda part: engine(part)[0, 0].float() * size)


def load_model(folder: str, dtype: Any) -> tuple[list[int], float]:
    """The memory that loading a reference model with ZeRO-3 takes, and how exact it is.

    Bytes of each rank's own at the peak (pages of the file, which ranks share, are not counted),
    and the largest gap between its log-probs and those of a model that transformers loads by
    itself.
    """
    init_ranks()
    optimizer, model = (
        Optimizer(zero_stage=3),
        Model(
            path=folder,
            dtype=dtype,
        ),
    )
    with _growth() as peak:
        with loading(optimizer, model):
            policy = _policy_in(folder, dtype)
        reference = FrozenModel(policy, optimizer, model)
    batch = collate(samples_of_step(0))
    logprobs, _ = reference(batch, 1.0)
    peaks = _gather(max(peak))
    with torch.no_grad():
        expected, _ = _policy_in(folder, dtype)(batch, 1.0)
    return peaks, (logprobs - expected).abs().max().item()


def _policy_in(folder: str, dtype: str) -> Policy:
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=DTYPES[dtype], attn_implementation=PACKED
    )
    return Policy(model, chunk_tokens=50)


@contextmanager
def _growth() -> Iterator[list[int]]:
    """Of this process's own memory, every now and then while the context lasts."""
    before, done = _own_memory(), threading.Event()
    growth: list[int] = []

    def watch() -> None:
        while not done.wait(0.002):
            growth.append(_own_memory() - before)

    watching = threading.Thread(target=watch)
    watching.start()
    yield growth
    done.set()
    watching.join()


def _own_memory() -> int:
    """Bytes."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.findall(r"RssAnon:\s+(\d+) kB", status)[0])


def compare_memory(rows: list[int]) -> None:
    """Print what the rows of a benchmark measure, as JSON."""
    sys.argv[1:] = ["--json", "--only", *map(str, rows)]
    training_memory.main()


def warm_start(recipe: str, out: str, models: str) -> int:
    """``weir sft``; returns its exit status."""
    os.environ["WEIR_MODEL_ROOTS"] = models
    return sft_main([recipe, out])


class _TroubledRank(Rank):
    """Trains by one collective that one rank never reaches; there is nothing to save on rank 0."""

    def __init__(
        self,
        trouble: Callable[[], None],
        rank: int,
        do: str = "train",
    ) -> None:
        super().__init__()
        self.trouble, self.rank, self.do = trouble, rank, do

    def carry_out(self, order: Order) -> Measured:
        if order.do == self.do and int(os.environ["RANK"]) == self.rank:
            self.trouble()
        if order.do == "train":
            torch.distributed.all_reduce(torch.zeros(1))
        elif order.do != "save":
            return super().carry_out(order)
        return Measured()


def _fail() -> None:
    raise MemoryError("rank 0 failed")


def fail_on_rank_0() -> list[str]:
    """The errors of an order that fails on rank 0, and of the one that waits behind it."""

    async def lead(team: Team) -> list[str]:
        orders = team.train([]), team._give(Order(do="idle"))
        failures = await asyncio.gather(*orders, return_exceptions=True)
        return [type(failure).__name__ for failure in failures]

    return _led(lead, _TroubledRank(_fail, rank=0))


def lose_rank_1() -> list[str]:
    """The errors of an order in the middle of which rank 1 is killed."""

    async def lead(team: Team) -> list[str]:
        return await _errors_of(team.train([]))

    return _led(lead, _TroubledRank(lambda: os.kill(os.getpid(), signal.SIGKILL), rank=1))


def fail_to_save(model: str) -> list[str]:
    """The errors that rank 0 hears, rehearsing, of a rank that could not save."""

    def fail() -> None:
        raise OSError(errno.ENOSPC, "No space left", "a file")

    async def lead(team: Team) -> list[str]:
        recipe = recipe_of(model, TOO_LARGE)
        await team.open(Path(model), recipe)
        await team.save(Path(model))
        return await _errors_of(team.rehearse(largest_micro_batches(recipe, team.num_ranks)))

    return _led(
        lead,
        _TroubledRank(fail, rank=1, do="save"),
        stays=True,
    )


def run_out_of_memory(model: str, *, stays: bool) -> list[str]:
    """What rank 0 hears of rehearsals, of which rank 1 has no memory for the last."""

    async def lead(team: Team) -> list[str]:
        heard = []
        for tokens in (SMALL, SMALL, LARGE):
            fitting = limit_micro_batches(recipe_of(model, TOO_LARGE), tokens)
            await team.open(Path(model), fitting)
            rehearsal = team.rehearse(largest_micro_batches(fitting, team.num_ranks))
            heard += await _errors_of(rehearsal) or ["it fits"]
        return heard

    return _led(
        lead,
        Rank() if os.environ["RANK"] == "0" else _SmallRank(),
        stays=stays,
    )


class _SmallRank(Rank):
    """May allocate little more once it has rehearsed a small step."""

    is_limited = False

    def carry_out(self, order: Order) -> Measured:
        measured = super().carry_out(order)
        if order.do == "rehearse" and not self.is_limited:
            self.is_limited = True
            (used,) = re.findall(r"VmData:\s+(\d+) kB", Path("/proc/self/status").read_text())
            limit = int(used) * 1024 + ROOM
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        return measured


async def _errors_of(order: Any) -> list[str]:
    try:
        await order
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]
    return []


class Endless(Rank):
    """A rank whose models load for ever; the folder's name is where it leaves its pid."""

    def carry_out(self, order: Order) -> Measured:
        if order.do == "open":
            place = Path(order.folder, os.environ["RANK"])
            place.with_suffix(".new").write_text(str(os.getpid()))
            place.with_suffix(".new").rename(place)
            threading.Event().wait()
        return super().carry_out(order)


def abandon(folder: str) -> list[str]:
    """Rank 0 gives up an order that no rank comes to the end of."""

    async def lead(team: Team) -> list[str]:
        opening = asyncio.create_task(team.open(Path(folder), a_recipe()))
        other = Path(folder, "1")
        while not other.exists():
            await asyncio.sleep(0.02)
        opening.cancel()
        await asyncio.wait({opening})
        busy = team.is_busy
        team.abandon()
        while Path("/proc", other.read_text()).exists():
            await asyncio.sleep(0.02)
        return [f"busy: {busy}", "rank 1 has ended"]

    return _led(lead, Endless())


def _led(
    lead: Lead,
    rank: Rank,
    *,
    stays: bool = False,
) -> list[str]:
    """What rank 0 hears; another one that fails is silent then, or ends."""
    init_ranks()
    if os.environ["RANK"] == "0":
        team = Team()
        team._rank = rank
        return asyncio.run(lead(team))
    try:
        rank.follow()
    except Exception:
        if stays:  # as one does that waits for another one's GPU
            signal.pause()
        raise
    raise SystemExit("it was let go")
