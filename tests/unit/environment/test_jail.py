"""The rights of a client's program in a jail."""

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from protocol.messages import Task
from protocol.recipe import Environment

from services.chassis.faults import Unworkable
from services.environment.addresses import Addresses
from services.environment.episodes import EnvironmentEnded, EpisodeBroken
from services.environment.gateway_client import Session
from services.environment.hosts import GroupPlayer, Hosts
from tests.tables import table

pytestmark = pytest.mark.anyio
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="others may have no namespaces")
TASK = Task(id="t", prompt="1+1")
_TRY = """
import ctypes, os, pathlib, socket, subprocess, sys, urllib.request
def attempt():
    {}
try:
    print(float(attempt()))
except (OSError, AssertionError) as error:
    print(-1)
"""


def program(body: str) -> Environment:
    return Environment(command=(sys.executable, "-c", _TRY.format(body)))


@asynccontextmanager
async def jail(environment: Environment, *hidden: Path) -> AsyncIterator[GroupPlayer]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        assert head.count("\nhost:") == 1
        assert f"\nhost: 127.0.0.1:{port}\r\nconnection: close\r\n" in head
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: close\r\n\r\n5")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    folders = [str(folder) for folder in hidden]
    hosts = Hosts(f"http://127.0.0.1:{port}", Addresses(()), True, folders)
    try:
        async with hosts.open_group(environment, "job") as player:
            yield player
    finally:
        await hosts.close()
        server.close()


async def play(body: str, *hidden: Path) -> float | None:
    async with jail(program(body), *hidden) as player:
        return await player.play(TASK, Session("http://gateway/rollout/a", "k"), 1)


async def test_a_program_reaches_the_gateway() -> None:
    url = "os.environ['OPENAI_BASE_URL']"
    assert await play(f"return urllib.request.urlopen({url}, b'{{}}').read()") == 5


@needs_root
@pytest.mark.parametrize(
    "request_line", ["GET /rollout/a/v1/models", "POST /v1/files", "POST http://other/rollout/a"]
)
async def test_a_program_reaches_nothing_of_the_gateway_but_sessions(request_line: str) -> None:
    body = f"""
    place = os.environ['OPENAI_BASE_URL'].split('/')[2].split(':')
    way = socket.create_connection((place[0], int(place[1])), 10)
    way.sendall(b'{request_line} HTTP/1.1\\r\\n\\r\\n')
    return b' 403 ' not in way.recv(100)
    """
    assert await play(body) == 0


@needs_root
async def test_the_gateway_hears_one_request_for_its_own_host() -> None:
    """It is told to close the connection, on which others could follow."""
    body = """
    request = urllib.request.Request(os.environ['OPENAI_BASE_URL'], b'{}')
    request.add_header('Host', 'other')
    return urllib.request.urlopen(request).read()
    """
    assert await play(body) == 5


@needs_root
@table("""
    body
    return len([p for p in os.listdir('/proc') if p.isdigit()]) > 3
    return open('/proc/1/environ').read() != ''
    return open('/etc/shadow').read() != ''
    return os.getuid() == 0
    return os.mkdir('/tests') or 1
    return open(os.path.join(os.getcwd(), 'x'), 'w').write('x')
    return open(sys.executable, 'ab').write(b'x')
    return ctypes.CDLL(None).unshare(0x10000000) == 0
    return ctypes.CDLL(None).ptrace(0, 0, 0, 0) == 0
    return subprocess.run(['unshare', '-r', 'true']).returncode == 0
    return ctypes.CDLL(None).mount(b'x', b'/tmp', b'tmpfs', 0, None) == 0
    return socket.create_connection(('127.0.0.1', {port}), 5) is not None
    return any(name.startswith('WEIR_') and 'KEY' in name for name in os.environ)
    os.kill(1, 9); return 1
""")
async def test_what_a_program_may_not_do(body: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        assert await play(body.replace("{port}", str(other.getsockname()[1]))) in (0, -1)


@needs_root
async def test_no_program_sees_the_folders_of_the_stack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("stack/key", "shown/key", "shown/inner/key", ".hidden/key", "secrets/key"):
        path = tmp_path / "folder" / name
        path.parent.mkdir(parents=True)
        path.write_text("1")
    (tmp_path / "folder/link").symlink_to(tmp_path / "folder/stack")
    for folder in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        folder.chmod(0o755)
    python_path = f"{os.environ.get('PYTHONPATH', '')}:{tmp_path / 'folder'}"
    monkeypatch.setenv("PYTHONPATH", python_path)
    paths = [
        f"{tmp_path}/folder/{name}/key"
        for name in ("stack", ".hidden", "secrets", "link", "shown/inner")
    ]
    body = f"return any(os.path.exists(path) for path in {paths})"
    hidden = (tmp_path / "folder/stack", tmp_path / "folder/shown/inner")
    assert await play(body, *hidden) == 0
    body = f"return float(open('{tmp_path}/folder/shown/key').read())"
    assert await play(body, *hidden) == 1


@pytest.mark.parametrize("target", ["127.0.0.1:{port}", "localhost:{port}", "[::1]:{port}"])
@needs_root
async def test_the_way_out_leads_to_no_private_address(target: str) -> None:
    body = """
    place = os.environ['HTTPS_PROXY'].rpartition('/')[2].split(':')
    way = socket.create_connection((place[0], int(place[1])), 10)
    way.sendall(b'CONNECT {target} HTTP/1.1\\r\\n\\r\\n')
    return b' 403 ' not in way.recv(100)
    """
    with socket.create_server(("127.0.0.1", 0)) as other:
        target = target.replace("{port}", str(other.getsockname()[1]))
        assert await play(body.replace("{target}", target)) == 0


@table("""
    signal | name
    11     | SIGSEGV
    19     | SIGSTOP
""")
async def test_a_group_that_ends_its_process_is_given_up_with_how_it_ended(
    signal: int, name: str
) -> None:
    """Its parent is the process that plays."""
    ends = f"os.kill(os.getppid(), {signal}); import time; time.sleep(60)"
    async with jail(program(ends)) as player:
        session = Session("http://gateway/rollout/a", "k")
        for _ in range(3):
            with pytest.raises((EnvironmentEnded, EpisodeBroken)):
                await player.play(TASK, session, 1)
        with pytest.raises(Unworkable, match=f"has ended 3 times .* {name}"):
            await player.play(TASK, session, 1)
