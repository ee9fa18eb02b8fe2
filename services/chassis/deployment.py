"""The settings of a deployment, which come from environment variables only."""

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
_TOP_FOLDERS = set(os.listdir("/")) - {"dev", "proc", "sys"}
_PATH = re.compile(
    rf"(?<![\w./:-])/(?:{'|'.join(map(re.escape, _TOP_FOLDERS))})"
    r"(?:/[\w.@+=~-]+)*/([\w.@+=~-]+)"
)


class DeploymentError(ValueError):
    """An environment variable is missing or wrong; the text names it and the remedy."""


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
    metrics_port: int  # may be `port`
    trusted_proxies: tuple[str, ...]
    api_keys: tuple[str, ...] = field(repr=False)
    heartbeat_s: float
    claim_idle_s: float
    drain_s: float
    keep_samples_bytes: int
    keep_samples_days: float
    log_level: str
    name: str = ""  # of this process in `weir why`
    num_gpus: int = 0  # of this process
    turns: tuple[str, ...] = ()  # GPUs that learner and engine use in turns
    extensions: tuple[str, ...] = ()
    umask: int = 0o077

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Deployment:
        """Read the ``WEIR_*`` variables, or the files that ``WEIR_*_FILE`` name."""
        read = Reader(environment)
        port = read("WEIR_PORT", int)
        data_dir = read("WEIR_DATA_DIR", _parse_folder)
        model_roots, model_hub = model_sources(environment)
        deployment = cls(
            redis_url=_redis_url(read),
            data_dir=data_dir,
            memory_dir=read("WEIR_MEMORY_DIR", _parse_folder, str(data_dir / "weights")),
            weights_by_delta=read("WEIR_WEIGHTS", _parse_weights, "memory"),
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
            log_level=read("WEIR_LOG_LEVEL", _parse_level, "INFO"),
            name=read("WEIR_NAME", str, ""),
            num_gpus=read("WEIR_NUM_GPUS", int, "0"),
            turns=read("WEIR_TURNS", split_list, ""),
            extensions=read("WEIR_EXTENSIONS", split_list, ""),
            umask=read("WEIR_UMASK", lambda text: int(text, 8), "077"),
        )
        if deployment.claim_idle_s < 3 * deployment.heartbeat_s:
            raise DeploymentError(
                f"WEIR_CLAIM_IDLE_S={deployment.claim_idle_s} must be at least three times "
                f"WEIR_HEARTBEAT_S={deployment.heartbeat_s}, or live workers lose their leases"
            )
        return deployment

    def load_extensions(self) -> None:
        """Import the deployment's modules, which add formulas to the tables."""
        import_extensions("WEIR_EXTENSIONS", self.extensions)

    def hide_paths(self, text: str) -> str:
        """Replace this machine's paths in a text for users: by a variable's name, or by "…"."""
        variables = {self.data_dir: "WEIR_DATA_DIR", self.memory_dir: "WEIR_MEMORY_DIR"}
        variables |= {root: "WEIR_MODEL_ROOTS" for root in self.model_roots if root.name}
        for folder in sorted(variables, key=lambda folder: -len(str(folder))):
            text = re.sub(rf"{re.escape(str(folder))}(?![\w.-])", variables[folder], text)
        return _PATH.sub(r"…/\1", text)

    @property
    def files_dir(self) -> Path:
        return self.data_dir / "files"

    @property
    def weights_dir(self) -> Path:
        """The weights that are published on disk, in a folder per job."""
        return self.data_dir / "weights"

    @property
    def weights_roots(self) -> tuple[Path, Path]:
        """The folders of published weights on disk and in memory, which may be the same."""
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
    """Return the folders for models, and whether a model hub may be used."""
    read = Reader(environment)
    roots = read("WEIR_MODEL_ROOTS", _parse_paths, ".:models")
    return roots, read("WEIR_MODEL_HUB", parse_switch, "off")


def home_dir(environment: Mapping[str, str]) -> Path:
    return Path(environment.get("WEIR_HOME", ".weir"))


def read_variable(environment: Mapping[str, str], name: str) -> str | None:
    """Return a variable's value, or the content of the file that ``<name>_FILE`` names.

    An empty variable counts as not set, since a compose file sets it to nothing.
    """
    value = lookup(environment, name)
    path = environment.get(f"{name}_FILE")
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
    """Import modules; errors name their ``source``, an environment variable."""
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
        """Parse a variable's text, or the default's."""
        text = read_variable(self.environment, name)
        if text is None:
            text = default
        if text is None:
            raise DeploymentError(f"{name} is not set; `weir up` and docker-compose.yml set it")
        try:
            return parse(text)
        except ValueError as error:
            raise DeploymentError(f"{name}={text!r}: {error}") from error


def _redis_url(read: Reader) -> str:
    redis_url = read("WEIR_REDIS_URL", str)
    password = read("WEIR_REDIS_PASSWORD", str, "")
    parts = urlsplit(redis_url)
    if not password:
        return redis_url
    if parts.password is not None:
        raise DeploymentError(
            "WEIR_REDIS_URL holds a password, and WEIR_REDIS_PASSWORD is set; remove one of them"
        )
    user, _, server = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{user}:{quote(password, safe='')}@{server}").geturl()


def _parse_folder(text: str) -> Path:
    folder = Path(text).absolute()
    if glob.has_magic(str(folder)):
        raise ValueError("vLLM reads [, * and ? as a pattern; choose another folder")
    return folder


def _parse_paths(text: str) -> tuple[Path, ...]:
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
    number = parse_whole(text)
    if number == 0:
        raise ValueError("give a whole number above 0")
    return number


def parse_switch(text: str) -> bool:
    if text not in {"on", "off"}:
        raise ValueError("say 'on' or 'off'")
    return text == "on"


def _parse_weights(text: str) -> bool:
    if text not in {"memory", "delta"}:
        raise ValueError("say 'memory' or 'delta'")
    return text == "delta"


def _parse_level(text: str) -> str:
    if text.upper() not in logging.getLevelNamesMapping():
        raise ValueError("say DEBUG, INFO, WARNING, ERROR or CRITICAL")
    return text
