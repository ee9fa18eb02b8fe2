"""A rollout without vLLM: it follows the policy and answers calls of the gateway ``gateway-1``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from protocol import weights
from protocol.calls import Call, Piece, Served, Token
from protocol.exchange import Exchange, connect
from protocol.messages import FinishReason, PolicyVersion, Probes
from protocol.operations import PROBES

from services.chassis.parity import digest_prompts
from services.chassis.service import Service
from services.rollout.calls import CallServer
from services.rollout.policy_sync import PolicyFollower
from tests.builders import a_recipe, a_request
from tests.contract.call_client import CallClient, a_call
from tests.contract.exchange_steps import a_deployment, activate
from tests.contract.valkey_server import Server
from tests.inline_prompts import InlinePrompts
from tests.unit.rollout.test_policy_sync import write_folder

if TYPE_CHECKING:  # which imports vLLM
    from services.rollout.engine import Engine

PLACES = 16


class Sampler:
    """Stands in for the engine: a load and a response go on until they may end."""

    has_died = sleeps = is_loading = False
    places = PLACES
    prompts = InlinePrompts()
    settings = SimpleNamespace(max_context=64)

    def __init__(self) -> None:
        self.under_way: list[str] = []
        self.loaded: list[str] = []
        self.ends, self.may_load = asyncio.Event(), asyncio.Event()
        self.may_load.set()
        self.fault: Exception | None = None
        self.load_s = 0.0  # that a load is said to take

    async def load(
        self,
        folder: Path,
        label: str,
        *,
        keep_kv: bool,
    ) -> dict[str, float]:
        self.is_loading = True
        await self.may_load.wait()
        self.is_loading = False
        if self.fault is not None:
            raise self.fault
        self.loaded.append(folder.name)
        return {"load": self.load_s}

    async def score(
        self,
        prompt: object,
        seconds: dict[str, float],
    ) -> list[float]:
        return [-1.0]

    async def sleep(self) -> None:
        self.sleeps = True

    async def wake_up(self) -> None:
        self.sleeps = False

    async def answer(
        self,
        call: Call,
        ids: list[int],
        max_tokens: int,
    ) -> AsyncIterator[Piece]:
        self.under_way.append(call.id)
        common: dict[str, Any] = {"call_id": call.id, "tries": call.tries}
        try:
            tokens = tuple(
                Token(
                    id=token_id,
                    text=str(token_id),
                    logprob=-1.0,
                )
                for token_id in ids
            )
            yield Piece(
                **common,
                tokens=tokens,
                text=self.loaded[-1],
                prompt_ids=tuple(ids),
            )
            await self.ends.wait()
            yield Piece(**common, finish_reason=FinishReason.STOP)
        finally:
            self.under_way.remove(call.id)


def probes_of(logprob: float) -> Probes:
    """The learner's log-prob of the only token is ``logprob``; the sampler's is -1."""
    return Probes(
        tasks=(),
        rendered=digest_prompts((), None, cast(Any, None), {}),
        token_ids=(1, 2),
        most=0.1,
        logprobs=(logprob,),
    )


@dataclass
class Line:
    """The rollout and the gateway are users of the server of their own."""

    exchange: Exchange  # for what the learner does
    service: Service
    door: CallClient
    engine: Sampler
    follower: PolicyFollower
    answering: CallServer
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    @property
    def weights_dir(self) -> Path:
        return self.service.deployment.weights_dir

    def call(
        self,
        call_id: str,
        model: str = "",
        **changes: Any,
    ) -> Call:
        """For a folder with a model that is the size of its name's, or the newest weights."""
        folder = str(self.model(model)) if model else ""
        served = Served(
            name=model,
            job_id="job",
            folder=folder,
            model=a_recipe().model,
        )
        return a_call(call_id, served=served, token_ids=(1, 2), **changes)

    def model(self, name: str) -> Path:
        folder = self.service.deployment.data_dir / name
        write_folder(folder, hidden=len(name))
        return folder

    def sampler(self, name: str, logprob: float) -> Path:
        """As a client's session saves one: the learner's log-prob of the probe is ``logprob``."""
        folder = self.model(name)
        (folder / PROBES).write_text(probes_of(logprob).model_dump_json())
        weights.seal(folder)
        return folder

    async def begin_job(self, **tables: Any) -> None:
        await activate(self.exchange, **tables)
        if "client" not in tables:
            await self.announce(0)

    async def announce(self, number: int, **changes: Any) -> None:
        folder = weights.version_folder("job", 1, number)
        digest = weights.write(
            self.weights_dir, folder, lambda target: write_folder(target, value=float(number))
        )
        version = {"job_id": "job", "attempt": 1, "number": number, "folder": folder}
        await self.exchange.announce(PolicyVersion(**version, digest=digest, **changes))

    async def sample(self, min_version: int = 0) -> None:
        request = a_request(min_version=min_version)
        async with asyncio.timeout(60), self.follower.acquire_engine(request):
            pass

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                await self.door.listen()

    async def listen(self) -> None:
        """For a while."""
        for _ in range(20):
            await self.door.listen()


@asynccontextmanager
async def open_line(server: Server, folder: Path) -> AsyncIterator[Line]:
    engine = Sampler()

    async def start(folder: Path, label: str, *_: object) -> Engine:
        await engine.load(folder, label, keep_kv=False)
        return cast("Engine", engine)

    async with (
        connect(server.url, me="learner-1", patience_s=5) as exchange,
        connect(server.url_of("rollout"), me="rollout-1", patience_s=5) as own,
        connect(server.url_of("gateway"), me="gateway-1", patience_s=5) as gateway,
    ):
        service = Service("rollout", a_deployment(folder), own)
        follower = PolicyFollower(service, start)
        line = Line(exchange, service, CallClient(gateway), engine, follower, CallServer(follower))
        line.tasks = [
            asyncio.create_task(line.answering.answer_forever()),
            asyncio.create_task(follower.follow_policy_forever()),
        ]
        yield line
        service.stop()
        await asyncio.wait(line.tasks, timeout=60)
        for task in line.tasks:
            task.cancel()
