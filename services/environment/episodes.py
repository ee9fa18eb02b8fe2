"""An episode: its tries, its deadline, and what is told of how it ended."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import math
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from prometheus_client import Counter, Gauge, Histogram
from protocol.calls import Terms
from protocol.messages import Episode, RolloutRequest, Task
from protocol.recipe import Environment

from services.chassis.faults import UnsupportedEntry, Unworkable
from services.chassis.metrics import start_at_zero
from services.environment.door import Door, DoorShut, Session, Trace
from services.environment.group import Played, calls_of, conversation_of, trained_branch

T = TypeVar("T")
# A task, the session in which the policy answers, and a seed that the episodes of a group share;
# the reward, None if the environment gave none.
Play = Callable[[Task, Session, int], Awaitable[float | None]]
_LOOK_S = 1.0
_PARTING_S = 5.0  # for what was cancelled
_FORGET_S = 2.0
MAX_WORDS = 500
PROBLEMS = ("episode_failed", "episode_timeout", "no_reward")
TRIES = start_at_zero(
    Counter("weir_episodes_total", "Episodes played, each try by how it ended", ["outcome"]),
    *("ended", *PROBLEMS),
)
UNDER_WAY = Gauge("weir_episodes_under_way", "Episodes that are played now")
TURNS = Histogram(
    "weir_episode_turns",
    "Responses of the policy in an episode",
    buckets=(1, 2, 3, 5, 8, 13, 21, 34, 55, 89),
)
SECONDS = Histogram(
    "weir_episode_seconds",
    "Of an episode, by who took them",
    ["part"],
    buckets=(0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000),
)


class Broken(Exception):
    """An episode broke through no fault of the policy: a code, and words about it."""

    def __init__(self, problem: str, words: str) -> None:
        super().__init__(words)
        self.problem, self.words = problem, words


class EnvironmentEnded(Exception):
    """The process that played an episode has ended; the text says how. Another one plays again."""


class DeadlineError(Exception):
    """An episode's time is up."""


@dataclass(frozen=True)
class Episodes:
    """The episodes of a group."""

    request: RolloutRequest
    settings: Environment
    do: Play
    door: Door

    async def play(self, index: int) -> Played:
        """Play one until it ends, within the recipe's tries and time, but for the model's."""
        left_s = self.settings.episode_timeout_s
        retries = self.settings.retries
        for number in itertools.count():
            try:
                played = await self._try(index, number, left_s)
            except EnvironmentEnded:  # counted by the environment, which gives up at some time
                retries += 1
                continue
            _count(played.episode)
            left_s -= played.episode.seconds["environment"]
            if not played.episode.problem or number == retries or left_s < _LOOK_S:
                return played
        raise AssertionError("a count has no end")

    async def _try(self, index: int, number: int, left_s: float) -> Played:
        request, began = self.request, time.monotonic()
        name = f"{request.job_id}-{request.purpose}-{request.number}-{index}-{number}"
        session = await self.door.open(name, self._terms(f"{index}.{number}"))
        reward, problem, words = None, "no_reward", "the environment gave no reward"
        try:
            playing = self.do(request.task, session, request.seed)
            reward = await self._within(left_s, session, playing)
        except Broken as broken:
            problem, words = broken.problem, broken.words
        except DeadlineError:
            problem = "episode_timeout"
            words = f"not over in {self.settings.episode_timeout_s:g} s, without those of the model"
        except (DoorShut, EnvironmentEnded, UnsupportedEntry, Unworkable, asyncio.CancelledError):
            await self._forget(session)
            raise
        except Exception as error:
            problem, words = "episode_failed", f"{type(error).__name__}: {error}"
        trace = await self.door.close(session)
        trace.refuse_if_the_model_failed()
        if reward is not None and not math.isfinite(reward):
            reward, words = None, f"the environment gave the reward {reward}"
        has_answered = trained_branch(trace) is not None
        if reward is None and trace.is_full and has_answered and problem != "episode_timeout":
            reward = 0.0  # the policy has filled its context, and its agent did not expect it
        elif reward is not None and not has_answered:
            reward, problem, words = None, "episode_failed", "the policy has answered nothing"
        seconds = time.monotonic() - began
        return Played(_episode(trace, seconds, reward, problem, words), trace)

    async def _within(self, left_s: float, session: Session, playing: Awaitable[T]) -> T:
        """Its result, or `DeadlineError`, also if it hangs when it is cancelled."""
        task, began, rest_s = asyncio.ensure_future(playing), time.monotonic(), left_s
        try:
            while rest_s > 0 and not await _ends(task, max(rest_s, _LOOK_S)):
                trace = await self.door.look(session)
                trace.refuse_if_nobody_answers()  # a retry of a failed one may be under way
                rest_s = left_s + trace.seconds - (time.monotonic() - began)
            if task.done():
                return task.result()
        finally:
            task.cancel()
        await asyncio.wait({task}, timeout=_PARTING_S)
        raise DeadlineError

    async def _forget(self, session: Session) -> None:
        """Else it would lie at the gateway for a week."""
        with suppress(DoorShut, TimeoutError):
            async with asyncio.timeout(_FORGET_S):
                await self.door.close(session)

    def _terms(self, of_try: str) -> Terms:
        request = self.request
        text = f"{request.seed}.{of_try}".encode()
        return Terms(
            job_id=request.job_id,
            purpose=request.purpose,
            min_version=request.min_version,
            version=request.version,
            sampling=request.sampling,
            seed=int.from_bytes(hashlib.blake2b(text, digest_size=7).digest()),
        )


def _episode(
    trace: Trace, seconds: float, reward: float | None, problem: str, words: str
) -> Episode:
    is_broken = reward is None
    calls = calls_of(trace, None if is_broken else trained_branch(trace))
    of_model = min(trace.seconds, seconds)
    return Episode(
        reward=reward,
        problem=problem if is_broken else "",
        words=_printable(words) if is_broken else "",
        turns=len(trace.answered),
        seconds={"model": round(of_model, 3), "environment": round(seconds - of_model, 3)},
        conversation=conversation_of(calls),
    )


def _printable(words: str) -> str:
    """One line that any encoding can hold."""
    return " ".join(words.split())[:MAX_WORDS].encode(errors="replace").decode()


def _count(episode: Episode) -> None:
    TRIES.labels(episode.problem or "ended").inc()
    TURNS.observe(episode.turns)
    for part, seconds in episode.seconds.items():
        SECONDS.labels(part).observe(seconds)


async def _ends(task: asyncio.Future[T], within_s: float) -> bool:
    await asyncio.wait({task}, timeout=within_s)
    return task.done()
