"""Secrets among the variables of this process, out of sight of its children and of other processes.

The kernel shows the variables that a process was started with in /proc/PID/environ, as long as it
lives, to every process of the same user. This file needs the standard library only, since the
supervisors in ``deploy`` use it too.
"""

import ctypes
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path

_NAME = re.compile(
    r"WEIR_JUDGES|SSHPASS|\w*PASSWORD|\w+_PWD"
    r"|(?!RAY_)(?:\w+_)?(?:KEYS?|KEY_ID|TOKEN|SECRET|CREDENTIALS?|PASS|PASSWD|AUTH)",
    re.IGNORECASE,
)
_URL_WITH_PASSWORD = re.compile(r"://[^/\s@]*:[^/\s@]+@")
_ENVIRON_START = 47  # the place of `env_start` behind the name in /proc/PID/stat; `env_end` is next
_hidden: dict[str, str] = {}


def is_secret(name: str, text: str) -> bool:
    """Whether a variable holds a secret, by its name, or because its text is a URL with a password.

    Libraries look for a proxy in their variables only, so a proxy never counts.
    """
    if name.lower().endswith("_proxy"):
        return False
    return bool(_NAME.fullmatch(name) or _URL_WITH_PASSWORD.search(text))


def hide_secrets(names: Collection[str] | None = None) -> None:
    """Remove secrets from the environment, and overwrite them where the kernel shows them.

    Children do not inherit them; `lookup` still finds them. ``names`` limits this to some.
    """
    for name, text in list(os.environ.items()):
        if is_secret(name, text) if names is None else name in names:
            _hidden[name] = text
            del os.environ[name]
    fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    start, end = map(int, fields[_ENVIRON_START : _ENVIRON_START + 2])
    for entry in re.finditer(rb"([^=\0]+)=([^\0]+)", ctypes.string_at(start, end - start)):
        if os.fsdecode(entry[1]) in _hidden:
            ctypes.memset(start + entry.start(2), ord("*"), len(entry[2]))


def lookup(environment: Mapping[str, str], name: str) -> str | None:
    """Return a variable; one of this process also if it is hidden."""
    hidden = _hidden if environment is os.environ else {}
    return environment.get(name) or hidden.get(name)


def all_variables() -> dict[str, str]:
    """Return the variables of this process, for a program that takes its place."""
    return {**_hidden, **os.environ}
