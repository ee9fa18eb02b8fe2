"""Tasksets of `verifiers`, which only this module imports; their agents call the policy."""

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
from services.environment.episodes import EpisodeBroken, Play
from services.environment.gateway_client import MODEL, Session

_LIBRARY = {"verifiers", "pydantic_config", "pydantic"}
# Fields of the library that hold only text, so every task may have them.
_TEXTS = {"idx", "id", "name", "description", "prompt", "system_prompt"}


@asynccontextmanager
async def open_taskset(environment: Environment, *, may_run_programs: bool) -> AsyncIterator[Play]:
    """Load a taskset, and play its episodes; raises as `_load` does."""
    assert environment.taskset is not None
    _share_certificates()
    if not may_run_programs:
        _refuse_programs()
    library_environment = _load(
        environment.taskset,
        environment.settings,
        environment.max_turns,
        is_trusted=may_run_programs,
    )
    async with library_environment.serving():
        yield _Taskset(library_environment, may_run_programs).play


def render_tasks(name: str, settings: Any) -> Iterator[str]:
    """Yield the tasks of a taskset, as lines of a task file."""
    for task in _load(name, settings, max_turns=1).taskset:
        data = task.data
        prompt = data.prompt_text or data.description or data.name or "-"
        fields = {
            "id": data.id or data.name or f"{name}-{data.idx}",
            # With messages instead of a prompt, a task needs no answer.
            "messages": [{"role": "user", "content": prompt}],
            "metadata": {"task": data.model_dump(mode="json", exclude_defaults=True)},
        }
        yield json.dumps(fields)


def _load(name: str, settings: Any, max_turns: int, *, is_trusted: bool = True) -> Any:
    """Return the `verifiers` environment of a taskset.

    Settings with the name of a field of its configuration, such as those of agents, go there; all
    others go to the taskset.

    Raises:
        RuntimeError: if a network or a disk may be to blame.
        UnsupportedEntry: if it cannot be loaded for another reason.
    """
    try:
        loaders = importlib.import_module("verifiers.v1.utils.loaders")
        name = _register(name)
        if not is_trusted:
            _refuse_library_settings(loaders.taskset_config_type(name), settings)
        config_type = loaders.env_config_type(name, str(settings.get("id", "")))
        fields = config_type.model_fields
        config = {key: value for key, value in settings.items() if key in fields}
        taskset = {key: value for key, value in settings.items() if key not in fields}
        config["taskset"] = {**taskset, **config.get("taskset", {}), "id": name}
        agent_type = importlib.import_module("verifiers.v1").AgentConfig
        for role, field in fields.items():
            if isinstance(field.default, agent_type):
                defaults = _agent_defaults(field.default, name, max_turns)
                config[role] = {**defaults, **config.get(role, {})}
        return loaders.load_environment(loaders.resolve_env_config(config))
    except UnsupportedEntry:
        raise
    except BaseException as error:  # a module may raise anything
        error_type = (
            RuntimeError if isinstance(error, OSError | httpx.HTTPError) else UnsupportedEntry
        )
        raise error_type(
            f"environment.taskset = {name!r} cannot be loaded: {type(error).__name__}: {error}; "
            "install its package for the environment workers (`make install-environment` makes "
            "their .venv-environment), or add its folder to PYTHONPATH; see also "
            "environment.settings"
        ) from error


def _register(name: str) -> str:
    """Return the name by which `verifiers` finds a taskset: it imports no module of a package."""
    alias = name.replace(".", "_").lower()
    if alias != name:
        sys.modules[alias] = importlib.import_module(name)
    return alias


def _agent_defaults(agent: Any, taskset: str, max_turns: int) -> dict[str, Any]:
    """Return settings for an agent that its author left open: run it on this machine."""
    loaders = importlib.import_module("verifiers.v1.utils.loaders")
    defaults: dict[str, Any] = {"runtime": {"type": "subprocess"}, "max_turns": max_turns}
    # Any other harness is the taskset's own.
    if loaders.default_harness_id(taskset) == "bash":
        defaults["harness"] = {"id": "null"}
    return {key: value for key, value in defaults.items() if key not in agent.model_fields_set}


def _refuse_library_settings(config_type: Any, settings: Mapping[str, Any]) -> None:
    refused = sorted(settings.keys() - _author_fields(config_type))
    if refused:
        raise UnsupportedEntry(
            f"environment.settings.{refused[0]} is a setting of the library, which may name "
            "programs, files or servers, or is unknown; remove it, or set "
            "WEIR_ENVIRONMENT_COMMANDS=on for the environment workers"
        )


def _refuse_library_fields(data_type: Any, fields: Mapping[str, Any]) -> None:
    library_fields = data_type.model_fields.keys() - _author_fields(data_type) - _TEXTS
    refused = sorted(fields.keys() & library_fields)
    if refused:
        raise EpisodeBroken(
            "episode_failed",
            f"metadata.{refused[0]} is a field of the library, which may name programs, files or "
            "servers; remove it from the tasks, or set WEIR_ENVIRONMENT_COMMANDS=on for the "
            "environment workers",
        )


def _author_fields(model_type: Any) -> set[str]:
    """Return the fields of a model that its taskset's author declares, not the library."""
    fields = set(model_type.model_fields)
    for base in model_type.__mro__:
        if base.__module__.partition(".")[0] in _LIBRARY:
            fields -= set(getattr(base, "model_fields", ()))
    return fields


def _share_certificates() -> None:
    """Load certificates once: `verifiers` makes an HTTP client for each session."""
    transport: Any = importlib.import_module("httpx._transports.default")
    transport.create_ssl_context = cache(httpx.create_ssl_context)


@cache
def _clients() -> dict[str, Any]:
    """Return the clients of open sessions, by URL: `verifiers` would never close its own."""
    server: Any = importlib.import_module("verifiers.v1.interception.server").InterceptionServer
    clients: dict[str, Any] = {}
    make_client = server._client
    server._client = lambda self, config: clients.get(config.base_url) or make_client(self, config)
    return clients


def _refuse_programs() -> None:
    """Replace every runtime by one that refuses to run programs."""
    runtimes: Any = importlib.import_module("verifiers.v1.runtimes")

    class NoPrograms(runtimes.SubprocessRuntime):
        """A runtime for agents that call the model from this process."""

        def __init__(self, config: Any, name: str | None = None) -> None:
            super().__init__(runtimes.SubprocessConfig(), name)

        async def run(self, argv: list[str], env: dict[str, str]) -> Any:
            raise PermissionError(
                "the taskset or its agent starts a program, which is refused; "
                "WEIR_ENVIRONMENT_COMMANDS=on of the environment workers allows it"
            )

    runtimes._runtime_cls = lambda config: NoPrograms


@dataclass(frozen=True)
class _Taskset:
    """A loaded taskset; if trusted, tasks may name programs and files, which run in the jail."""

    environment: Any
    is_trusted: bool

    async def play(self, task: Task, session: Session, seed: int) -> float | None:
        """Return the reward of the agent with the most tokens, None if it has none."""
        vf = importlib.import_module("verifiers.v1")
        # Agents' programs do not inherit variables with such names.
        key_name = f"{session.url}_API_KEY"
        os.environ[key_name] = session.key
        config = vf.EvalClientConfig(base_url=f"{session.url}/v1", api_key_var=key_name)
        context = vf.ModelContext(model=MODEL, client=config, sampling=vf.SamplingConfig())
        client = vf.resolve_client(config)
        _clients()[config.base_url] = client
        try:
            episode = await self.environment.run_episode(self._convert(task), context)
        finally:
            del os.environ[key_name]
            del _clients()[config.base_url]
            await client.close()
        errors = list(episode.errors)
        for trace in episode.traces:
            errors += trace.errors
        if errors:
            message = f"{errors[-1].type}: {errors[-1].message}"
            raise EpisodeBroken("episode_failed", message)
        trace = max(episode.traces, key=lambda trace: trace.num_output_tokens)
        has_reward = any(reward is not None for reward in trace.rewards.values())
        return trace.reward if has_reward else None

    def _convert(self, task: Task) -> Any:
        """Convert a task: from the fields that `render_tasks` wrote, or from its own."""
        taskset = self.environment.taskset
        task_type = type(taskset).task_type()
        data_type = task_type.data_type()
        prompt = task.prompt or [message.model_dump() for message in task.messages or ()]
        default = {"name": task.id, "prompt": prompt, "answer": task.answer, **task.metadata}
        fields = task.metadata.get("task", default)
        if not isinstance(fields, dict):
            raise EpisodeBroken("episode_failed", "metadata.task must be an object")
        if not self.is_trusted:
            _refuse_library_fields(data_type, fields)
        return task_type(data_type.model_validate(fields), taskset.config.task)
