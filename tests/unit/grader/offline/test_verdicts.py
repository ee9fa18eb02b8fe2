"""``weir grade FILE``: one verdict per line, in order, whatever the lines are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from services.grader.offline.__main__ import main
from services.grader.offline.verdicts import MAX_LINE_BYTES

pytestmark = pytest.mark.slow

Grade = Callable[[bytes], tuple[int, list[dict[str, Any]], list[str]]]


def a_line(response: str = r"So it is \boxed{42}.", answer: str = "42", **others: Any) -> str:
    return json.dumps({"response": response, "answer": answer, **others})


@pytest.fixture
def grade(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Grade:
    """Grades lines: the exit status, the lines of standard output, those of standard error."""
    monkeypatch.setenv("WEIR_GRADER_WORKERS", "2")

    def graded(lines: bytes) -> tuple[int, list[dict[str, Any]], list[str]]:
        path = tmp_path / "responses.jsonl"
        path.write_bytes(lines)
        status = main([str(path)])
        said = capfd.readouterr()
        return status, [json.loads(line) for line in said.out.splitlines()], said.err.splitlines()

    return graded


PERCENT, NAMED = r"\boxed{42\%}", r"\boxed{\text{Area} = 42}"
READ = [
    (a_line(), True, None),
    (a_line(r"\boxed{\sum_{k=1}^{99999999} k^{9} x}", r"\sqrt{x}"), False, "wrong"),
    (a_line(r"\boxed{41}", id=7, kind="other keys are left alone"), False, "wrong"),
    (a_line(r"\boxed{\frac{\sqrt{2}}{2}}", r"\frac{1}{\sqrt{2}}"), True, None),
    (a_line("no answer at all"), False, "no_answer"),
    (a_line(r"\boxed{x+1}", r"\foo{"), None, "gold_not_parsable"),
    (a_line(PERCENT, problem="By what percent does it grow?"), True, None),
    (a_line(PERCENT, problem="How many are there?"), False, "wrong"),
    (a_line(PERCENT), False, "wrong"),
    (a_line(NAMED, problem="Find the area."), True, None),
    (a_line(NAMED, problem="Find the perimeter."), False, "wrong"),
    (a_line(NAMED, problem=""), True, None),
    (r'{"response": "\ud800 \\boxed{42}", "answer": "42"}', True, None),
    (r'{"response": "\\boxed{\udfff}", "answer": "42"}', False, "not_parsable"),
    (r'{"response": "\\boxed{42}", "answer": "\ud800"}', None, "gold_not_parsable"),
    (r'{"response": "\u0000\\boxed{\u00004\u00002}", "answer": "42"}', False, "not_parsable"),
    (r'{"response": "\\boxed{42}\u2028", "answer": "42"}', True, None),
]


def test_every_line_gets_its_verdict_in_order_whatever_it_holds(grade: Grade) -> None:
    status, found, errors = grade(("\ufeff" + "\r\n".join(line for line, *_ in READ)).encode())
    assert (status, errors) == (0, [])
    assert [[line["verdict"], line["reason"]] for line in found] == [said for _, *said in READ]
    assert all(list(line) == ["verdict", "reason", "path", "ms"] for line in found)
    assert all(isinstance(line["path"], str) and line["ms"] >= 0 for line in found)


UNREADABLE = {
    b'{"response": "\xff", "answer": "1"}': "not JSON: 'utf-8' codec can't decode byte 0xff",
    b"{oops": "not JSON: Expecting property name",
    b"  ": "not JSON: Expecting value",
    b'["response"]': "no JSON object",
    b'{"response": "x"}': "answer: missing",
    b'{"answer": "x"}': "response: missing",
    b'{"response": "x", "answer": 1}': "answer: must be text, in quotes",
    b'{"response": "", "answer": "1", "problem": []}': "problem: must be text, in quotes",
    b"[" * 100_000: "not JSON: maximum recursion depth",
    b"9" * 5000: "not JSON: Exceeds the limit",
    a_line("x" * MAX_LINE_BYTES).encode(): "longer than 64 MiB",
}


def test_a_line_that_cannot_be_read_has_its_place_and_a_message(grade: Grade) -> None:
    good = a_line().encode()
    status, found, errors = grade(b"\n".join(b"%s\n%s" % (good, bad) for bad in UNREADABLE))
    assert status == 2
    given = [(line["verdict"], line["reason"]) for line in found]
    assert given == [(True, None), (None, "unreadable_line")] * len(UNREADABLE)
    for number, (error, problem) in enumerate(zip(errors, UNREADABLE.values(), strict=True), 1):
        assert error.startswith(f"weir grade: line {2 * number}: {problem}")


def test_a_line_of_fifty_megabytes_is_graded(grade: Grade) -> None:
    status, found, _ = grade(f"{a_line('x' * (50 << 20))}\n{a_line()}".encode())
    assert (status, [line["reason"] for line in found]) == (0, ["too_long", None])


@pytest.mark.parametrize(
    ("name", "problem"), [("absent.jsonl", "No such file"), ("", "Is a directory")]
)
def test_what_is_no_file_is_named(
    name: str, problem: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / name)]) == 2
    said = capfd.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"weir grade: {tmp_path}")
    assert problem in said.err
