"""The tries of an episode, its deadline, and its outcome."""

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
from protocol.traces import Trace

from services.chassis.faults import UnsupportedEntry, Unworkable
from services.chassis.metrics import start_at_zero
from services.environment.gateway_client import (
    GatewayClient,
    GatewayUnavailable,
    Session,
    is_full,
    raise_if_silent,
    raise_server_error,
)
from services.environment.group import (
    FinishedEpisode,
    build_conversation,
    select_calls,
    trained_branch,
)

T = TypeVar("T")
# Play a task in a session, with a seed that the episodes of a group share. Returns the reward,
# None if the environment gave none.
Play = Callable[[Task, Session, int], Awaitable[float | None]]
# The deadline is checked this often; no try starts with less time.
_CHECK_S = 1.0
_CANCEL_TIMEOUT_S = 5.0
_CLOSE_TIMEOUT_S = 2.0
MAX_MESSAGE_CHARS = 500
PROBLEMS = ("episode_failed", "episode_timeout", "no_reward")
TRIES = start_at_zero(
    Counter("weir_episodes_total", "Tries of episodes, by outcome", ["outcome"]),
    *("ended", *PROBLEMS),
)
UNDER_WAY = Gauge("weir_episodes_under_way", "Episodes that are being played")
TURNS = Histogram(
    "weir_episode_turns",
    "Responses of the policy in an episode",
    buckets=(1, 2, 3, 5, 8, 13, 21, 34, 55, 89),
)
SECONDS = Histogram(
    "weir_episode_seconds",
    "Seconds of an episode, by the part that took them",
    ["part"],
    buckets=(0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000),
)


class EpisodeBroken(Exception):
    """An episode broke through no fault of the policy; ``problem`` is one of `PROBLEMS`."""

    def __init__(self, problem: str, message: str) -> None:
        super().__init__(message)
        self.problem = problem


class EnvironmentEnded(Exception):
    """The process of an episode has ended; the text says how. Another one plays it again."""


class _EpisodeTimeout(Exception):
    pass


@dataclass(frozen=True)
class _Outcome:
    """A reward, or None with a problem and a message."""

    reward: float | None
    problem: str = ""
    message: str = ""


@dataclass(frozen=True)
class Episodes:
    """The episodes of a group."""

    request: RolloutRequest
    settings: Environment
    run: Play
    gateway: GatewayClient

    async def play(self, index: int) -> FinishedEpisode:
        """Play an episode, within the recipe's tries and time; the model's time does not count."""
        remaining_s = self.settings.episode_timeout_s
        retries = self.settings.retries
        for number in itertools.count():
            try:
                finished = await self._try(index, number, remaining_s)
            except EnvironmentEnded:
                # The host counts its ends, and gives up by itself.
                retries += 1
                continue
            episode = finished.episode
            _count(episode)
            remaining_s -= episode.seconds["environment"]
            if not episode.problem or number == retries or remaining_s < _CHECK_S:
                return finished
        raise AssertionError("unreachable")

    async def _try(self, index: int, number: int, remaining_s: float) -> FinishedEpisode:
        request = self.request
        start = time.monotonic()
        name = f"{request.job_id}-{request.purpose}-{request.number}-{index}-{number}"
        session = await self.gateway.open_session(name, self._terms(f"{index}.{number}"))
        outcome = await self._run(session, remaining_s)
        trace = await self.gateway.close_session(session)
        raise_server_error(trace)
        if trained_branch(trace) is None:
            if not outcome.problem:
                outcome = _Outcome(None, "episode_failed", "the policy was not called")
        elif is_full(trace) and outcome.problem not in ("", "episode_timeout"):
            # The policy filled its context, and the agent did not handle that.
            outcome = _Outcome(0.0)
        seconds = time.monotonic() - start
        return FinishedEpisode(_build_episode(trace, seconds, outcome), trace)

    async def _run(self, session: Session, limit_s: float) -> _Outcome:
        try:
            running = self.run(self.request.task, session, self.request.seed)
            reward = await self._run_until_deadline(limit_s, session, running)
        except EpisodeBroken as error:
            return _Outcome(None, error.problem, str(error))
        except _EpisodeTimeout:
            timeout_s = self.settings.episode_timeout_s
            message = f"the environment took over {timeout_s:g} s, without the time of the model"
            return _Outcome(None, "episode_timeout", message)
        except (
            GatewayUnavailable,
            EnvironmentEnded,
            UnsupportedEntry,
            Unworkable,
            asyncio.CancelledError,
        ):
            await self._abandon(session)
            raise
        except Exception as error:
            return _Outcome(None, "episode_failed", f"{type(error).__name__}: {error}")
        if reward is None:
            return _Outcome(None, "no_reward", "the environment gave no reward")
        if not math.isfinite(reward):
            return _Outcome(None, "no_reward", f"the environment gave the reward {reward}")
        return _Outcome(reward)

    async def _run_until_deadline(
        self, limit_s: float, session: Session, running: Awaitable[T]
    ) -> T:
        """Return the result, or raise `_EpisodeTimeout`, even if it ignores its cancellation."""
        task = asyncio.ensure_future(running)
        start = time.monotonic()
        remaining_s = limit_s
        try:
            while remaining_s > 0 and not task.done():
                await asyncio.wait({task}, timeout=max(remaining_s, _CHECK_S))
                if not task.done():
                    trace = await self.gateway.read_trace(session)
                    raise_if_silent(trace)
                    remaining_s = limit_s + trace.seconds - (time.monotonic() - start)
            if task.done():
                return task.result()
        finally:
            task.cancel()
        await asyncio.wait({task}, timeout=_CANCEL_TIMEOUT_S)
        raise _EpisodeTimeout

    async def _abandon(self, session: Session) -> None:
        """Close a session, which the gateway would keep for a week."""
        with suppress(GatewayUnavailable, TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self.gateway.close_session(session)

    def _terms(self, try_id: str) -> Terms:
        request = self.request
        text = f"{request.seed}.{try_id}".encode()
        return Terms(
            job_id=request.job_id,
            purpose=request.purpose,
            min_version=request.min_version,
            version=request.version,
            sampling=request.sampling,
            seed=int.from_bytes(hashlib.blake2b(text, digest_size=7).digest()),
        )


def _build_episode(trace: Trace, seconds: float, outcome: _Outcome) -> Episode:
    branch = None if outcome.problem else trained_branch(trace)
    model_s = min(trace.seconds, seconds)
    # One line that any encoding can hold.
    line = " ".join(outcome.message.split())[:MAX_MESSAGE_CHARS]
    return Episode(
        reward=outcome.reward,
        problem=outcome.problem,
        words=line.encode(errors="replace").decode(),
        turns=len(trace.answered),
        seconds={"model": round(model_s, 3), "environment": round(seconds - model_s, 3)},
        conversation=build_conversation(select_calls(trace, branch)),
    )


def _count(episode: Episode) -> None:
    TRIES.labels(episode.problem or "ended").inc()
    TURNS.observe(episode.turns)
    for part, seconds in episode.seconds.items():
        SECONDS.labels(part).observe(seconds)
