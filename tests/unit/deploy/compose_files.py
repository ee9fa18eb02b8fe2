"""The compose files as compose reads them: one on top of another."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from deploy import compose
from deploy.placement import parse

ROOT = Path(__file__).parents[3]
SERVICES = ("gateway", "grader", "rollout", "learner")
BASE_TEXT = (ROOT / "docker-compose.yml").read_text()
# As a person has them who has set nothing.
_VARIABLE = re.compile(r"\$\{(\w+)(?::-((?:[^}]|\}(?=\}))*?))?\}")


class Instead(list[Any]):
    """A list tagged !override: it replaces, where others are appended."""


class Nothing:
    """What is tagged !reset."""


class _Loader(yaml.SafeLoader):
    pass


def _instead(loader: _Loader, node: yaml.Node) -> Instead:
    assert isinstance(node, yaml.SequenceNode)
    return Instead(loader.construct_sequence(node, deep=True))


_Loader.add_constructor("!override", _instead)
_Loader.add_constructor("!reset", lambda loader, node: Nothing())


def read(text: str) -> dict[str, Any]:
    """A file with the defaults of its variables."""
    return yaml.load(_VARIABLE.sub(lambda match: match[2] or "", text), Loader=_Loader)


def variables(text: str) -> set[str]:
    """The variables that a file takes from the shell or .env."""
    return {match[1] for match in _VARIABLE.finditer(text)}


BASE = read(BASE_TEXT)


def stack(gpu_text: str | None = None) -> dict[str, Any]:
    """The services of docker-compose.yml, perhaps with a file of GPUs on top."""
    services: dict[str, Any] = BASE["services"]
    for name, own in read(gpu_text)["services"].items() if gpu_text else ():
        extended = services.get(name, {})
        if whence := own.pop("extends", None):
            assert whence["file"] == "docker-compose.yml"  # as seen from the project's root
            extended = BASE["services"][whence["service"]]
        services = services | {name: merged(extended, own)}
    return services


def merged(below: Any, above: Any) -> Any:
    """One value on top of another."""
    if isinstance(below, dict) and isinstance(above, dict):
        both = below | {key: merged(below.get(key), value) for key, value in above.items()}
        return {key: value for key, value in both.items() if not isinstance(value, Nothing)}
    if isinstance(below, list) and isinstance(above, dict):  # networks, in short and in full
        return merged(dict.fromkeys(below), above)
    return list(above) if isinstance(above, Instead) else above


def gpus_of(service: dict[str, Any]) -> list[str]:
    """The GPUs that a container sees."""
    reserved = service.get("deploy", {}).get("resources", {}).get("reservations", {})
    return [gpu for device in reserved.get("devices", []) for gpu in device.get("device_ids", [])]


JUDGED = "learner=0-3 rollout=4-5 rollout=6@0.5 judge=7@0.6"
TEXTS = {
    path.name: path.read_text() for path in sorted((ROOT / "deploy" / "compose").glob("*.yml"))
} | {"judged": compose.written(parse(JUDGED), "a test")}
STACKS = {"cpu": stack()} | {name: stack(text) for name, text in TEXTS.items()}
