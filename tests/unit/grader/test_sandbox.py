"""A client's own function grades: its arguments, its values, and the limits of its sandbox."""

import asyncio
import ctypes
import os
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
from protocol.messages import Graded, Score, Ungradable
from protocol.rewards import PythonSource

from services.chassis.pool import Cause, Failed, Pool, Value, sandbox
from services.grader import client_code
from services.grader.tools import Tools
from services.grader.trial_record import start_record
from services.grader.verifiers import openai
from tests.builders import a_task
from tests.tables import table
from tests.unit.grader.pools import failing_tools
from tests.unit.grader.scores import describe

pytestmark = [pytest.mark.anyio]


@pytest.fixture(scope="module")
async def sandboxed(anyio_backend: str) -> AsyncIterator[Tools]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEIR_JUDGE_API_KEY", "secret")  # as the deployment has it
        patch.setattr(openai, "CLIENT_CODE_S", 60.0)  # for the busiest machine
        async with Pool(2, warm_ups=[client_code.WARM_UP], confined=True) as pool:
            yield Tools(pool, sandbox=pool)


async def graded(tools: Tools, body: str) -> tuple[Score, str]:
    """The score of a function with this body, and the note of its failure."""
    source = PythonSource(source="def grade(sample, item):\n" + indent(body, "    "))
    task = a_task(metadata={"unit": "m"})
    text = '<think>5</think> {"value": 4}'
    notes = start_record()
    score = await openai.python(task, text, source, tools)
    return score, "".join(notes.details.values())


SEES_ALL = """
import re
assert item["answer"] == "2" and item["unit"] == "m", item
assert sample["output_json"] == {"value": 4}, sample
return 0.5 * bool(re.search("4", sample["output_text"]))
"""


@table(
    """
    body        | score
    return 7    | 1
    return -0.5 | 0
    return True | 1
""",
    (SEES_ALL, 0.5),
)
async def test_a_function_sees_sample_and_item_and_its_number_is_cut_to_the_unit_range(
    sandboxed: Tools, body: str, score: float
) -> None:
    assert await graded(sandboxed, body) == (Graded(value=score), "")


@table("""
    body                     | reason        | words
    return item['colour']    | python_error  | KeyError: 'colour'
    return '1'               | python_error  | str
    return float('nan')      | python_error  | nan
    raise SystemExit(0)      | python_error  | SystemExit
    import os; os.abort()    | python_crash  | SIGABRT
    return len('x' * 10**10) | python_memory | memory
""")
async def test_a_failure_is_no_grade_and_is_told_in_words(
    sandboxed: Tools, body: str, reason: str, words: str
) -> None:
    score, note = await graded(sandboxed, body)
    assert describe(score) == f"ungradable {reason}"
    assert words in note


EXECUTES = """
def grade(sample, item):
    names = {}
    exec(sample["output_text"], names)
    return float(names["f"](3) == 9)
"""


@table("""
    text                               | score
    def f(x): return x * x             | 1
    def f(x) return                    | 0 crashed
    def f(x): return x / 0             | 0 crashed
    raise SystemExit                   | 0 crashed
    raise KeyboardInterrupt            | 0 crashed
    import os; os._exit(0)             | 0 crashed
    import os; os.kill(os.getpid(), 9) | 0 crashed
    x = 'x' * 10**10                   | 0 crashed
                                       | ungradable python_error
""")
async def test_a_response_whose_code_fails_is_worth_nothing(
    sandboxed: Tools, text: str, score: str
) -> None:
    """The grader itself asks for f."""
    source = PythonSource(source=EXECUTES)
    assert describe(await openai.python(a_task(), text, source, sandboxed)) == score


class _ScriptedSandbox:
    """Outcomes for a response's runs in turn; a run with the answer, "2", ends well."""

    def __init__(self, outcomes: list[str]) -> None:
        self.outcomes = outcomes

    async def run(self, function: str, source: str, sample: Any, *_: Any, **__: Any) -> Any:
        outcome = "1" if sample["output_text"] == "2" else self.outcomes.pop(0)
        is_number = outcome[0].isdigit()
        return Value({"value": float(outcome)}) if is_number else Failed(Cause(outcome))


@table("""
    outcomes    | score
    timeout     | 0 never_ended
    stall stall | 0 never_ended
    stall 0.5   | 0.5
    killed 0.5  | 0.5
""")
async def test_a_response_that_never_ends_is_worth_nothing_and_a_busy_machine_costs_nothing(
    outcomes: str, score: str
) -> None:
    box: Any = _ScriptedSandbox(outcomes.split())
    source = PythonSource(source=EXECUTES)
    actual = await openai.python(a_task(), "f = 0", source, Tools(box, sandbox=box))
    assert describe(actual) == score


@table("""
    cause   | score                     | words
    timeout | ungradable python_timeout | not done
    stall   | ungradable starved        | too busy
""")
async def test_a_function_that_hangs_reads_whether_it_computed(
    cause: str, score: str, words: str
) -> None:
    hung, _ = failing_tools(Failed(Cause(cause), "not done"))
    actual, note = await graded(replace(hung, sandbox=hung.pool), "while True: pass")
    assert describe(actual) == score
    assert note.endswith(words)


@pytest.mark.parametrize("error", ["PermissionError('mine')", "PermissionError(13, 'no', '/x')"])
def test_what_a_function_may_not_do_is_no_fault_of_the_operator(
    error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_code, "can_read_python", lambda: False)
    result = client_code.grade(f"def grade(sample, item): raise {error}", {}, {})
    assert "operator" not in result["error"]


MODULE = """
import json
found = getattr(json, 'mine', 0)
json.mine = 1
return found
"""
MEMORY_KEY = 0x57000000 + os.getpid()  # of System V, which outlives whoever made it
MEMORY = f"""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.POINTER(ctypes.c_char)
number = libc.shmget({MEMORY_KEY}, 1, 0o1666)
assert number >= 0, ctypes.get_errno()
memory = libc.shmat(number, None, 0)
found, memory[0] = memory[0], b"x"
return found != b"\\0"
"""
KEYRINGS = """
import ctypes, platform
libc = ctypes.CDLL(None)
add_key, keyctl = dict(x86_64=(248, 250), aarch64=(217, 219))[platform.machine()]
for keyring in (-3, -4):  # of the session, of the user
  if libc.syscall(keyctl, 10, keyring, b"user", b"weir", 0) >= 0:
    return 1
  libc.syscall(add_key, b"user", b"weir", b"x", 1, keyring)
return 0
"""


@pytest.mark.parametrize("body", [MODULE, MEMORY, KEYRINGS], ids=["module", "memory", "keyrings"])
async def test_no_call_leaves_anything_to_the_next(sandboxed: Tools, body: str) -> None:
    may = os.geteuid() == 0 and await asyncio.to_thread(run_in_child, sandbox.leave_network)
    if body != MODULE and not may:
        pytest.skip("not allowed here")
    assert [await graded(sandboxed, body) for _ in range(4)] == [(Graded(value=0), "")] * 4
    assert str(MEMORY_KEY) not in Path("/proc/sysvipc/shm").read_text().split()


RIGHTS = """
import ctypes, struct
libc = ctypes.CDLL(None)
rights = ctypes.create_string_buffer(24)
assert libc.capget(struct.pack("=Ii", 0x20080522, 0), rights) == 0
has_any = any(rights.raw) or libc.prctl(3) != 0  # or others may trace it
"""
BOUNDING = "1 in [libc.prctl(23, number, 0, 0, 0) for number in range(64)]"


@pytest.mark.parametrize(
    "has",
    [
        "return any(name.startswith('WEIR') for name in os.environ)",
        "return b'secret' in open(f'/proc/{os.getppid()}/environ', 'rb').read()",
        "return os.fork() >= 0",
        "import ctypes; return ctypes.CDLL(None).unshare(0x10000000) == 0",  # all rights, in there
        "return os.write(os.open(f'/tmp/weir-{os.getpid()}', 65), b'x') > 0",
        f"return os.kill({os.getpid()}, 0) is None",
        f"{RIGHTS}return has_any",
        f"{RIGHTS}return {os.geteuid() == 0} and {BOUNDING}",  # others have nothing to give up
    ],
)
async def test_it_has_none_of_what_it_does_not_need(sandboxed: Tools, has: str) -> None:
    body = f"import os\ntry:\n{indent(has, '  ')}\nexcept OSError:\n  return 0"
    assert await graded(sandboxed, body) == (Graded(value=0), "")


def may_landlock() -> int:
    return ctypes.CDLL(None).syscall(444, None, 0, 1) >= 1


@pytest.mark.parametrize(
    ("may", "body"),
    [
        (may_landlock, "import os; os.stat('/etc/hostname'); open('/etc/hostname')"),
        (sandbox.leave_network, "import socket; socket.socket().connect(('127.0.0.1', 9))"),
    ],
)
async def test_it_reads_nothing_but_python_and_has_no_network_where_the_kernel_allows_that(
    sandboxed: Tools, may: Callable[[], int], body: str
) -> None:
    if not await asyncio.to_thread(run_in_child, may):
        pytest.skip("not allowed here")
    score, note = await graded(sandboxed, body)
    assert score == Ungradable(reason="python_error")
    assert 'File "source", line 2, in grade' in note
    assert re.search(r"Permission denied|Network is unreachable", note)


def run_in_child(what: Callable[[], int]) -> int:
    """Run a function in a child; return its exit status, or 2 if it raises."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(what())
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


async def test_a_user_who_is_not_root_has_no_capability_either() -> None:
    def rights_of_a_user() -> int:
        if os.geteuid() == 0:
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # others may trace it, as any process of a user
        sandbox.leave_network()
        sandbox.enter_sandbox()
        names: dict[str, Any] = {}
        exec(RIGHTS, names)
        return names["has_any"]

    assert await asyncio.to_thread(run_in_child, rights_of_a_user) == 0


async def test_without_a_sandbox_nothing_is_run(sandboxed: Tools) -> None:
    score, _ = await graded(replace(sandboxed, sandbox=None), "return 1")
    assert score == Ungradable(reason="no_python")
