"""A taskset of `verifiers`, which is imported here alone: its agents ask the session's policy."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import httpx
from protocol.messages import Task
from protocol.recipe import Environment

from services.chassis.faults import Unable
from services.environment.door import MODEL, Session
from services.environment.episodes import Broken, Play


def _loaded(name: str, settings: Any, max_turns: int) -> Any:
    """The `verifiers` environment that plays a taskset.

    Settings that its configuration has, such as those of its agents, are its own; all others are
    the taskset's.

    Raises:
        RuntimeError: if it cannot be loaded; `Unable` unless a network or a disk may be to blame.
    """
    try:
        loaders, name = importlib.import_module("verifiers.v1.utils.loaders"), _registered(name)
        config = loaders.env_config_type(name, str(settings.get("id", "")))
        own = {key: value for key, value in settings.items() if key in config.model_fields}
        taskset = {key: value for key, value in settings.items() if key not in own}
        own["taskset"] = {**taskset, **own.get("taskset", {}), "id": name}
        for role, agent in _agents(config):
            own[role] = {**_left_open(agent, name, max_turns), **own.get(role, {})}
        return loaders.load_environment(loaders.resolve_env_config(own))
    except Exception as error:
        kind = RuntimeError if isinstance(error, OSError | httpx.HTTPError) else Unable
        raise kind(
            f"environment.taskset = {name!r} cannot be loaded: {type(error).__name__}: {error}; "
            "install its package for the environment workers (`make install-environment` makes "
            "their .venv-environment), or have PYTHONPATH name its folder; see also "
            "environment.settings"
        ) from error


def _registered(name: str) -> str:
    """The name by which `verifiers` finds a taskset: it imports no module of a package."""
    alias = name.replace(".", "_").lower()
    if alias != name:
        sys.modules[alias] = importlib.import_module(name)
    return alias


def _agents(config: Any) -> Iterator[tuple[str, Any]]:
    kind = importlib.import_module("verifiers.v1").AgentConfig
    for name, field in config.model_fields.items():
        if isinstance(field.default, kind):
            yield name, field.default


def _left_open(agent: Any, taskset: str, max_turns: int) -> dict[str, Any]:
    """What an agent's author has not set: programs run on this machine, and do what they say."""
    loaders = importlib.import_module("verifiers.v1.utils.loaders")
    given: dict[str, Any] = {"runtime": {"type": "subprocess"}, "max_turns": max_turns}
    if loaders.default_harness_id(taskset) == "bash":  # else the taskset brings its own
        given["harness"] = {"id": "null"}
    return {key: value for key, value in given.items() if key not in agent.model_fields_set}


def _share_certificates() -> None:
    """`verifiers` makes an HTTP client for each session, which would read all of them again."""
    transport: Any = importlib.import_module("httpx._transports.default")
    transport.create_ssl_context = _ssl_context


@cache
def _ssl_context(*arguments: Any, **settings: Any) -> Any:
    return httpx.create_ssl_context(*arguments, **settings)


@asynccontextmanager
async def opened(environment: Environment) -> AsyncIterator[Play]:
    assert environment.taskset is not None
    _share_certificates()
    arguments = environment.taskset, environment.settings, environment.max_turns
    taskset = _Taskset(await asyncio.to_thread(_loaded, *arguments))
    async with taskset.env.serving():
        yield taskset.play


@dataclass(frozen=True)
class _Taskset:
    env: Any

    async def play(self, task: Task, session: Session, seed: int) -> float | None:
        """The reward of the agent that said the most; None if nothing rewards it."""
        vf = importlib.import_module("verifiers.v1")
        name = f"{session.url}_API_KEY"  # programs of agents do not inherit what is named so
        os.environ[name] = session.key
        client = vf.EvalClientConfig(base_url=f"{session.url}/v1", api_key_var=name)
        context = vf.ModelContext(model=MODEL, client=client, sampling=vf.SamplingConfig())
        try:
            episode = await self.env.run_episode(self._task(task), context)
        finally:
            del os.environ[name]
        if errors := [
            *episode.errors,
            *(error for trace in episode.traces for error in trace.errors),
        ]:
            raise Broken("episode_failed", f"{errors[-1].type}: {errors[-1].message}")
        trace = max(episode.traces, key=lambda trace: trace.num_output_tokens)
        scores = [reward for reward in trace.rewards.values() if reward is not None]
        return trace.reward if scores else None

    def _task(self, task: Task) -> Any:
        """From what `tasks` has written; or from the fields of a task that a person wrote."""
        kind = type(self.env.taskset).task_type()
        prompt = task.prompt or [turn.model_dump() for turn in task.messages or ()]
        told = {"name": task.id, "prompt": prompt, "answer": task.answer, **task.metadata}
        data = kind.data_type().model_validate(task.metadata.get("task", told))
        return kind(data, self.env.taskset.config.task)


def tasks_of(name: str, settings: Any) -> Iterator[str]:
    """The tasks that a taskset brings, as lines of a file of tasks."""
    for task in _loaded(name, settings, 1).taskset:
        data = task.data.model_dump(mode="json", exclude_defaults=True)
        prompt = task.data.prompt_text or task.data.description or task.data.name or "-"
        task_id = task.data.id or task.data.name or f"{name}-{task.data.idx}"
        turn = {"role": "user", "content": prompt}  # of messages no reader wants an answer
        yield json.dumps({"id": task_id, "messages": [turn], "metadata": {"task": data}})
