"""The ``weir`` command as a process, in a folder of its own."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.architecture.project import ROOT
from tests.contract.gateway.stack import KEY


def know(here: Path, url: str, key: str = KEY) -> None:
    (here / ".weir").mkdir(exist_ok=True)
    (here / ".weir" / "stack.json").write_text(json.dumps({"url": url, "api_key": key}))


def start_weir(
    here: Path, *arguments: str, most_bytes: int | None = None, **variables: str
) -> subprocess.Popen[str]:
    """The command in ``here``; no file that it writes can get larger than ``most_bytes``."""
    environment = {name: value for name, value in os.environ.items() if "WEIR" not in name}
    environment["PYTHONPATH"] = f"{ROOT / 'proto'}{os.pathsep}{ROOT}"
    return subprocess.Popen(
        [sys.executable, "-m", "services.gateway.cli", *arguments],
        cwd=here,
        env=environment | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_before(most_bytes),
    )


def weir(
    here: Path, *arguments: str, most_bytes: int | None = None, **variables: str
) -> tuple[int, str, str]:
    process = start_weir(here, *arguments, most_bytes=most_bytes, **variables)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def _before(most_bytes: int | None) -> Callable[[], None]:
    def prepare() -> None:
        # A shell that runs the tests in the background has its children ignore Ctrl-C.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if most_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))

    return prepare
