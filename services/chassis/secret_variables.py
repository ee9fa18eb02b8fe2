"""Hides secret environment variables from child processes and from other processes.

/proc/PID/environ shows the variables that a process was started with to every process of the same
user. This file imports only the standard library, since the supervisors in ``deploy`` use it too.
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
_ENVIRON_START = 47  # index of `env_start` after the name in /proc/PID/stat; `env_end` follows
_hidden: dict[str, str] = {}


def is_secret(name: str, text: str) -> bool:
    """Return whether a variable holds a secret: by its name, or as a URL with a password.

    A proxy never counts, since libraries read proxies only from the environment.
    """
    if name.lower().endswith("_proxy"):
        return False
    if _NAME.fullmatch(name):
        return True
    return _URL_WITH_PASSWORD.search(text) is not None


def hide_secrets(names: Collection[str] | None = None) -> None:
    """Move secrets out of the environment, and overwrite them in /proc/PID/environ.

    Children do not inherit them; `lookup` still finds them. ``names`` limits which are hidden.
    """
    for name, text in list(os.environ.items()):
        if is_secret(name, text) if names is None else name in names:
            _hidden[name] = text
            del os.environ[name]
    stat = Path("/proc/self/stat").read_text(encoding="utf-8")
    fields = stat.rpartition(")")[2].split()
    start = int(fields[_ENVIRON_START])
    end = int(fields[_ENVIRON_START + 1])
    environ = ctypes.string_at(start, end - start)
    for entry in re.finditer(rb"([^=\0]+)=([^\0]+)", environ):
        name = os.fsdecode(entry[1])
        if name in _hidden:
            ctypes.memset(start + entry.start(2), ord("*"), len(entry[2]))


def lookup(environment: Mapping[str, str], name: str) -> str | None:
    """Return a variable, also a hidden one of this process."""
    hidden = _hidden if environment is os.environ else {}
    return environment.get(name) or hidden.get(name)


def all_variables() -> dict[str, str]:
    """Return the variables of this process with the hidden ones, for a program that replaces it."""
    return {**_hidden, **os.environ}
