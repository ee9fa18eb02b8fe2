"""A client's own function grades: what it is given, may return, and cannot reach."""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from protocol.messages import Graded, Score, Ungradable
from protocol.rewards import PythonSource

from services.grader.pool import Pool, client_code, confinement
from services.grader.tools import Tools
from services.grader.trial_record import recorded
from services.grader.verifiers import python
from tests.builders import a_task

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def sandboxed(anyio_backend: str) -> AsyncIterator[Tools]:
    os.environ["WEIR_JUDGE_API_KEY"] = "secret"  # as the deployment has it
    async with Pool(2, warm_ups=[client_code.WARM_UP], confined=True) as sandbox:
        yield Tools(sandbox, sandbox=sandbox)
    del os.environ["WEIR_JUDGE_API_KEY"]


async def graded(tools: Tools, body: str, text: str = "4", **task: Any) -> tuple[Score, str]:
    """The score of a function with this body, and what was noted of its failure."""
    source = "def grade(sample, item):\n" + "".join(f"    {line}\n" for line in body.splitlines())
    with recorded() as notes:
        asked = a_task(**task), text, PythonSource(source=source), tools
        async with asyncio.timeout(30):
            score = await python.verify(*asked)
    return score, "".join(notes.details.values())


async def test_a_function_sees_the_sample_and_the_item(sandboxed: Tools) -> None:
    body = dedent("""
        import re
        assert item["answer"] == "2" and item["unit"] == "m", item
        assert sample["output_json"] == {"value": 4}, sample
        return 0.5 * bool(re.search("4", sample["output_text"]))
    """)
    score, _ = await graded(
        sandboxed, body, '<think>5</think> {"value": 4}', metadata={"unit": "m"}
    )
    assert score == Graded(value=0.5)


@pytest.mark.parametrize(
    ("value", "score"),
    [("7", 1), ("-0.5", 0), ("True", 1), ("float(sample['output_text'])/8", 0.5)],
)
async def test_a_number_is_cut_to_the_unit_range(
    sandboxed: Tools, value: str, score: float
) -> None:
    assert (await graded(sandboxed, f"return {value}"))[0] == Graded(value=score)


@pytest.mark.parametrize(
    ("body", "reason", "words"),
    [
        ("return item['colour']", "python_error", "KeyError: 'colour'"),
        ("return None", "python_error", "grade returned NoneType"),
        ("return '1'", "python_error", "grade returned str"),
        ("return float('nan')", "python_error", "grade returned nan, which is no finite number"),
        ("return -1e999", "python_error", "grade returned -inf"),
        ("raise SystemExit(0)", "python_error", "SystemExit"),
        ("import os; os.abort()", "python_crash", "SIGABRT"),
        ("return len('x' * 10**10)", "python_memory", "memory"),
    ],
)
async def test_a_failure_is_no_grade_and_is_told_in_words(
    sandboxed: Tools, body: str, reason: str, words: str
) -> None:
    score, told = await graded(sandboxed, body)
    assert score == Ungradable(reason=reason)
    assert any(word in told for word in words.split("|")), told


async def test_a_function_that_hangs_is_ended(
    sandboxed: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(python, "DEADLINE_S", 0.3)
    score, _ = await graded(sandboxed, "while True: pass")
    assert isinstance(score, Ungradable)
    assert score.reason in {"python_timeout", "starved"}  # of a machine that is busy
    assert (await graded(sandboxed, "return 1"))[0] == Graded(value=1)


async def test_a_function_that_sleeps_reads_that_it_did_not_compute(
    sandboxed: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(python, "DEADLINE_S", 0.3)
    score, told = await graded(sandboxed, "import time\ntime.sleep(60)")
    assert score == Ungradable(reason="starved")
    assert told.startswith("not done after 0.3 s, of which it computed for 0.")
    assert ": it sleeps or waits for something, or the grader's machine is too busy" in told


def test_modules_that_nobody_may_read_are_told_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = "def grade(sample, item):\n    import no_such_module"
    assert "private home" not in client_code.grade(source, {}, {})["error"]
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "not-to-be-seen"))
    told = client_code.grade(source, {}, {})["error"]
    assert "No module named 'no_such_module'\nthe grader's sandbox cannot read Python's" in told
    assert "not below a private home folder" in told


async def test_no_call_leaves_anything_to_the_next(sandboxed: Tools) -> None:
    body = "import json\nfound = getattr(json, 'mine', 0)\njson.mine = 1\nreturn found"
    scores = [(await graded(sandboxed, body))[0] for _ in range(4)]
    assert scores == [Graded(value=0)] * 4


FORBIDDEN = {
    "a variable of the deployment": "any(name.startswith('WEIR') for name in os.environ)",
    "a variable of the parents'": "b'secret' in open(f'/proc/{os.getppid()}/environ', 'rb').read()",
    "a process": "os.fork() >= 0",
    "a file to write": f"os.write(os.open('/tmp/weir-{os.getpid()}', 65), b'x') > 0",
    "a signal": f"os.kill({os.getpid()}, 0) is None",
}


@pytest.mark.parametrize("what", FORBIDDEN)
async def test_it_has_none_of_what_it_does_not_need(sandboxed: Tools, what: str) -> None:
    body = f"import os\ntry:\n    return {FORBIDDEN[what]}\nexcept OSError:\n    return 0"
    assert (await graded(sandboxed, body))[0] == Graded(value=0)


async def test_it_reads_nothing_but_python_where_the_kernel_allows_that(
    sandboxed: Tools,
) -> None:
    if ctypes.CDLL(None).syscall(444, None, 0, 1) < 1:
        pytest.skip("there is no Landlock here")
    body = "import os\nos.stat('/etc/hostname')\nreturn len(open('/etc/hostname').read())"
    score, told = await graded(sandboxed, body)
    assert score == Ungradable(reason="python_error")
    assert told.startswith('  File "source", line 4, in grade\n')
    assert "PermissionError" in told


async def test_it_has_no_network_where_the_kernel_allows_that(sandboxed: Tools) -> None:
    if not await asyncio.to_thread(_may_unshare):
        pytest.skip("unshare is not allowed here")
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    body = f"import socket\nsocket.socket().connect(('127.0.0.1', {port}))\nreturn 1"
    score, told = await graded(sandboxed, body)
    assert score == Ungradable(reason="python_error")
    assert "Network is unreachable" in told or "Permission denied" in told
    server.close()


def _may_unshare() -> bool:
    child = os.fork()
    if child == 0:
        os._exit(not confinement.leave_network())
    return os.waitpid(child, 0)[1] == 0


RIGHTS = """
import ctypes, struct
libc = ctypes.CDLL(None)
rights = ctypes.create_string_buffer(24)
assert libc.capget(struct.pack("=Ii", 0x20080522, 0), rights) == 0
has_any = any(rights.raw) or libc.prctl(3) != 0  # or others may trace it
"""


async def test_it_has_no_capability_and_is_not_traced(sandboxed: Tools) -> None:
    bounding = "[libc.prctl(23, number, 0, 0, 0) for number in range(64)]"
    is_root = os.geteuid() == 0  # others have nothing to give up
    score, told = await graded(
        sandboxed, f"{RIGHTS}return has_any or {is_root} and 1 in {bounding}"
    )
    assert score == Graded(value=0), told


async def test_a_user_who_is_not_root_has_no_capability_either() -> None:
    assert await asyncio.to_thread(_rights_of_a_user) == 0


def _rights_of_a_user() -> int:
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setresgid(65534, 65534, 65534)
                os.setresuid(65534, 65534, 65534)
            confinement.leave_network()
            confinement.lock_in()
            names: dict[str, Any] = {}
            exec(RIGHTS, names)
            os._exit(names["has_any"])
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


async def test_without_a_sandbox_nothing_is_run(sandboxed: Tools) -> None:
    score, _ = await graded(replace(sandboxed, sandbox=None), "return 1")
    assert score == Ungradable(reason="no_python")
