"""Deployment: where this process runs. It comes from the environment and from nowhere else."""

from __future__ import annotations

import glob
import importlib
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote, urlsplit

from services.chassis.secret_variables import lookup

T = TypeVar("T")
_TOPS = "|".join(re.escape(name) for name in set(os.listdir("/")) - {"dev", "proc", "sys"})
_ELSEWHERE = re.compile(rf"(?<![\w./:-])/(?:{_TOPS})(?:/[\w.@+=~-]+)*/([\w.@+=~-]+)")  # a path


class DeploymentError(ValueError):
    """A variable of the environment is missing or wrong; the text names it and the remedy."""


@dataclass(frozen=True)
class Deployment:
    redis_url: str = field(repr=False)
    data_dir: Path
    memory_dir: Path
    weights_by_delta: bool
    model_roots: tuple[Path, ...]
    model_hub: bool
    host: str
    port: int
    metrics_port: int  # the same as `port`, or another that serves nothing else
    trusted_proxies: tuple[str, ...]
    api_keys: tuple[str, ...] = field(repr=False)
    heartbeat_s: float
    claim_idle_s: float
    drain_s: float
    keep_samples_bytes: int
    keep_samples_days: float
    log_level: str
    name: str = ""  # how people call this process
    turns: tuple[str, ...] = ()  # GPUs on which learner and engine take turns
    extensions: tuple[str, ...] = ()
    umask: int = 0o077

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Deployment:
        """Read the ``WEIR_*`` variables, or the files that ``WEIR_*_FILE`` name."""
        read = Reader(environment)
        port = read("WEIR_PORT", int)
        model_roots, model_hub = model_sources(environment)
        deployment = cls(
            redis_url=_redis_url(read),
            data_dir=(data_dir := read("WEIR_DATA_DIR", _plain_folder)),
            memory_dir=read("WEIR_MEMORY_DIR", _plain_folder, str(data_dir / "weights")),
            weights_by_delta=read("WEIR_WEIGHTS", _way_of_weights, "memory"),
            model_roots=model_roots,
            model_hub=model_hub,
            host=read("WEIR_HOST", str, "127.0.0.1"),
            port=port,
            metrics_port=read("WEIR_METRICS_PORT", int, str(port)),
            trusted_proxies=read("WEIR_TRUSTED_PROXIES", split_list, ""),
            api_keys=read("WEIR_API_KEYS", split_list, ""),
            heartbeat_s=read("WEIR_HEARTBEAT_S", parse_positive, "1"),
            claim_idle_s=read("WEIR_CLAIM_IDLE_S", parse_positive, "15"),
            drain_s=read("WEIR_DRAIN_S", float, "10"),
            keep_samples_bytes=read("WEIR_KEEP_SAMPLES_BYTES", int, "10737418240"),
            keep_samples_days=read("WEIR_KEEP_SAMPLES_DAYS", float, "inf"),
            log_level=read("WEIR_LOG_LEVEL", _level, "INFO"),
            name=read("WEIR_NAME", str, ""),
            turns=read("WEIR_TURNS", split_list, ""),
            extensions=read("WEIR_EXTENSIONS", split_list, ""),
            umask=read("WEIR_UMASK", lambda text: int(text, 8), "077"),
        )
        if deployment.claim_idle_s < 3 * deployment.heartbeat_s:
            raise DeploymentError(
                f"WEIR_CLAIM_IDLE_S={deployment.claim_idle_s} must be at least three times "
                f"WEIR_HEARTBEAT_S={deployment.heartbeat_s}, or living workers lose their work"
            )
        return deployment

    def load_extensions(self) -> None:
        """Import the modules that add formulas of the deployment's own to the tables."""
        import_extensions("WEIR_EXTENSIONS", self.extensions)

    def hide_paths(self, text: str) -> str:
        """A text for people who use the stack, and need not know where folders lie here."""
        named = {self.data_dir: "WEIR_DATA_DIR", self.memory_dir: "WEIR_MEMORY_DIR"}
        named |= {root: "WEIR_MODEL_ROOTS" for root in self.model_roots if root.name}
        for folder in sorted(named, key=lambda folder: -len(str(folder))):
            text = re.sub(rf"{re.escape(str(folder))}(?![\w.-])", named[folder], text)
        return _ELSEWHERE.sub(r"…/\1", text)

    @property
    def files_dir(self) -> Path:
        return self.data_dir / "files"

    @property
    def weights_dir(self) -> Path:
        """What is published on disk, in a folder per job: the models that adapters are for."""
        return self.data_dir / "weights"

    @property
    def weights_roots(self) -> tuple[Path, Path]:
        """Where published weights lie: on disk, and in memory; they may be one folder."""
        return self.weights_dir, self.memory_dir

    @property
    def sessions_dir(self) -> Path:
        return self.data_dir / "sessions"

    @property
    def jobs_dir(self) -> Path:
        return self.data_dir / "jobs"

    def job_dir(self, job_id: str) -> Path:
        return self.jobs_dir / job_id


def model_sources(environment: Mapping[str, str]) -> tuple[tuple[Path, ...], bool]:
    """The folders that models may lie in, and whether a model hub is asked for others."""
    read = Reader(environment)
    roots = read("WEIR_MODEL_ROOTS", _paths, ".:models")
    return roots, read("WEIR_MODEL_HUB", parse_switch, "off")


def home_dir(environment: Mapping[str, str]) -> Path:
    return Path(environment.get("WEIR_HOME", ".weir"))


def read_variable(environment: Mapping[str, str], name: str) -> str | None:
    """A variable's value, or what is in the file that ``<name>_FILE`` names, as secrets are.

    Empty counts as not set, since a compose file passes on what is not set as empty.
    """
    value, path = lookup(environment, name), environment.get(f"{name}_FILE")
    if not path:
        return value or None
    if value:
        raise DeploymentError(f"{name} and {name}_FILE are both set; remove one of them")
    try:
        text = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise DeploymentError(f"{name}_FILE={path!r} cannot be read: {error}") from error
    if not text:
        raise DeploymentError(f"{name}_FILE={path!r} is empty; write the value of {name} into it")
    return text


def import_extensions(source: str, names: Iterable[str]) -> None:
    """Import the modules that ``source``, a variable of the environment, names."""
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:
            raise DeploymentError(
                f"{source}: {name!r} cannot be imported: {type(error).__name__}: "
                f"{error}; it must be the dotted name of a module on PYTHONPATH"
            ) from error


@dataclass(frozen=True)
class Reader:
    """Reads variables, or the files that ``<name>_FILE`` name."""

    environment: Mapping[str, str]

    def __call__(self, name: str, parse: Callable[[str], T], default: str | None = None) -> T:
        """What ``parse`` makes of a variable's text, or of the default's."""
        found = read_variable(self.environment, name)
        text = default if found is None else found
        if text is None:
            raise DeploymentError(f"{name} is not set; `weir up` and docker-compose.yml set it")
        try:
            return parse(text)
        except ValueError as error:
            raise DeploymentError(f"{name}={text!r}: {error}") from error


def _redis_url(read: Reader) -> str:
    redis_url, password = read("WEIR_REDIS_URL", str), read("WEIR_REDIS_PASSWORD", str, "")
    parts = urlsplit(redis_url)
    if not password:
        return redis_url
    if parts.password is not None:
        raise DeploymentError(
            "WEIR_REDIS_URL holds a password, and WEIR_REDIS_PASSWORD is set; remove one of them"
        )
    user, _, server = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{user}:{quote(password, safe='')}@{server}").geturl()


def _plain_folder(text: str) -> Path:
    folder = Path(text).absolute()
    if glob.has_magic(str(folder)):
        raise ValueError("vLLM takes a path with [, * or ? for a pattern; choose another folder")
    return folder


def _paths(text: str) -> tuple[Path, ...]:
    return tuple(Path(part).resolve() for part in text.split(":") if part)


def split_list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in re.split("[,\n]", text) if part.strip())


def parse_positive(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise ValueError("give a number above 0")
    return number


def parse_whole(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError("give a whole number")
    return int(text)


def parse_count(text: str) -> int:
    if not (number := parse_whole(text)):
        raise ValueError("give a whole number above 0")
    return number


def parse_switch(text: str) -> bool:
    if text not in {"on", "off"}:
        raise ValueError("say 'on' or 'off'")
    return text == "on"


def _way_of_weights(text: str) -> bool:
    if text not in {"memory", "delta"}:
        raise ValueError("say 'memory' or 'delta'")
    return text == "delta"


def _level(text: str) -> str:
    if text.upper() not in logging.getLevelNamesMapping():
        raise ValueError("say DEBUG, INFO, WARNING, ERROR or CRITICAL")
    return text
