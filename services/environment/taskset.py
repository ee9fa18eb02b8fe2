"""A taskset of `verifiers`, which is imported here alone: its agents ask the session's policy."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import httpx
from protocol.messages import Task
from protocol.recipe import Environment

from services.chassis.faults import UnsupportedEntry
from services.environment.door import MODEL, Session
from services.environment.episodes import Broken, Play

_LIBRARY = {"verifiers", "pydantic_config", "pydantic"}
_TEXTS = {"idx", "id", "name", "description", "prompt", "system_prompt"}  # of the library's fields


def _loaded(name: str, settings: Any, max_turns: int, *, is_trusted: bool = True) -> Any:
    """The `verifiers` environment that plays a taskset.

    Settings that its configuration has, such as those of its agents, are its own; all others are
    the taskset's.

    Raises:
        RuntimeError: if it cannot be loaded; `UnsupportedEntry` unless a network or a disk may be
            to blame.
    """
    try:
        loaders, name = importlib.import_module("verifiers.v1.utils.loaders"), _registered(name)
        if not is_trusted:
            _refuse_library_settings(loaders.taskset_config_type(name), settings)
        config = loaders.env_config_type(name, str(settings.get("id", "")))
        own = {key: value for key, value in settings.items() if key in config.model_fields}
        taskset = {key: value for key, value in settings.items() if key not in own}
        own["taskset"] = {**taskset, **own.get("taskset", {}), "id": name}
        for role, agent in _agents(config):
            own[role] = {**_left_open(agent, name, max_turns), **own.get(role, {})}
        return loaders.load_environment(loaders.resolve_env_config(own))
    except UnsupportedEntry:
        raise
    except BaseException as error:  # a module may do anything
        kind = RuntimeError if isinstance(error, OSError | httpx.HTTPError) else UnsupportedEntry
        raise kind(
            f"environment.taskset = {name!r} cannot be loaded: {type(error).__name__}: {error}; "
            "install its package for the environment workers (`make install-environment` makes "
            "their .venv-environment), or have PYTHONPATH name its folder; see also "
            "environment.settings"
        ) from error


def _refuse_library_settings(config: Any, settings: Mapping[str, Any]) -> None:
    refused = sorted(settings.keys() - _author_fields(config))
    if refused:
        raise UnsupportedEntry(
            f"environment.settings.{refused[0]} is no setting of the taskset's author; those of "
            "the library may name programs, files or servers, and are allowed by "
            "WEIR_ENVIRONMENT_COMMANDS=on of the environment workers"
        )


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


@cache
def _clients() -> dict[str, Any]:
    """The clients of the sessions that are open, by URL: `verifiers` would keep each for ever."""
    server: Any = importlib.import_module("verifiers.v1.interception.server").InterceptionServer
    clients, make = dict[str, Any](), server._client
    server._client = lambda self, config: clients.get(config.base_url) or make(self, config)
    return clients


@asynccontextmanager
async def open_taskset(environment: Environment, *, may_run_programs: bool) -> AsyncIterator[Play]:
    """Load a taskset, and play its episodes.

    Raises:
        RuntimeError: as `_loaded` does.
    """
    assert environment.taskset is not None
    _share_certificates()
    if not may_run_programs:
        _refuse_programs()
    env = _loaded(
        environment.taskset,
        environment.settings,
        environment.max_turns,
        is_trusted=may_run_programs,
    )
    taskset = _Taskset(env, may_run_programs)
    async with taskset.env.serving():
        yield taskset.play


def _refuse_programs() -> None:
    """Have every runtime be one that has no way to run a program."""
    runtimes: Any = importlib.import_module("verifiers.v1.runtimes")

    class NoPrograms(runtimes.SubprocessRuntime):
        """Where an agent plays that asks the model from this process."""

        def __init__(self, config: Any, name: str | None = None) -> None:
            super().__init__(runtimes.SubprocessConfig(), name)

        async def run(self, argv: list[str], env: dict[str, str]) -> Any:
            raise PermissionError(
                "the taskset or its agent starts a program, which is refused; "
                "WEIR_ENVIRONMENT_COMMANDS=on of the environment workers allows it"
            )

    runtimes._runtime_cls = lambda config: NoPrograms


def _author_fields(kind: Any) -> set[str]:
    """The fields of a model that a taskset's author has declared, and the library has not."""
    bases = [base for base in kind.__mro__ if base.__module__.partition(".")[0] in _LIBRARY]
    return set(kind.model_fields).difference(*(getattr(b, "model_fields", ()) for b in bases))


@dataclass(frozen=True)
class _Taskset:
    env: Any
    is_trusted: bool  # a client's task may name programs and files, which run in the jail

    async def play(self, task: Task, session: Session, seed: int) -> float | None:
        """The reward of the agent that said the most; None if nothing rewards it."""
        vf = importlib.import_module("verifiers.v1")
        name = f"{session.url}_API_KEY"  # programs of agents do not inherit what is named so
        os.environ[name] = session.key
        client = vf.EvalClientConfig(base_url=f"{session.url}/v1", api_key_var=name)
        context = vf.ModelContext(model=MODEL, client=client, sampling=vf.SamplingConfig())
        live = _clients()[client.base_url] = vf.resolve_client(client)
        try:
            episode = await self.env.run_episode(self._task(task), context)
        finally:
            del os.environ[name], _clients()[client.base_url]
            await live.close()
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
        person = {"name": task.id, "prompt": prompt, "answer": task.answer, **task.metadata}
        fields = task.metadata.get("task", person)
        if not isinstance(fields, dict):
            raise Broken("episode_failed", "metadata.task must be an object")
        if not self.is_trusted:
            _refuse_library_fields(kind.data_type(), fields)
        return kind(kind.data_type().model_validate(fields), self.env.taskset.config.task)


def _refuse_library_fields(data: Any, fields: Mapping[str, Any]) -> None:
    library_fields = data.model_fields.keys() - _author_fields(data) - _TEXTS
    refused = sorted(fields.keys() & library_fields)
    if refused:
        raise Broken(
            "episode_failed",
            f"metadata.{refused[0]} is a field of the library, which may name programs, files or "
            "servers; remove it from the tasks, or have WEIR_ENVIRONMENT_COMMANDS=on of the "
            "environment workers allow it",
        )


def tasks_of(name: str, settings: Any) -> Iterator[str]:
    """The tasks that a taskset brings, as lines of a file of tasks."""
    for task in _loaded(name, settings, 1).taskset:
        data = task.data.model_dump(mode="json", exclude_defaults=True)
        prompt = task.data.prompt_text or task.data.description or task.data.name or "-"
        task_id = task.data.id or task.data.name or f"{name}-{task.data.idx}"
        turn = {"role": "user", "content": prompt}  # of messages no reader wants an answer
        yield json.dumps({"id": task_id, "messages": [turn], "metadata": {"task": data}})
