"""``weir grade FILE``: one verdict per line, in order, whatever the lines are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from services.grader.offline.__main__ import main
from services.grader.offline.verdicts import MAX_LINE_BYTES


def a_line(response: str = r"So it is \boxed{42}.", answer: str = "42", **others: Any) -> str:
    return json.dumps({"response": response, "answer": answer, **others})


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_GRADER_WORKERS", "2")
    monkeypatch.delenv("WEIR_JUDGE_URL", raising=False)


pytestmark = [pytest.mark.usefixtures("environment"), pytest.mark.slow]


def grade(
    folder: Path, lines: str | bytes, capfd: pytest.CaptureFixture[str]
) -> tuple[int, list[dict[str, Any]], list[str]]:
    """The exit status, the lines of standard output, and those of standard error."""
    path = folder / "responses.jsonl"
    path.write_bytes(lines.encode() if isinstance(lines, str) else lines)
    status = main([str(path)])
    said = capfd.readouterr()
    return status, [json.loads(line) for line in said.out.splitlines()], said.err.splitlines()


def test_every_line_gets_its_verdict_in_order(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lines = [
        a_line(),
        a_line(r"\boxed{41}", id=7, kind="other keys are left alone"),
        a_line(r"\boxed{\frac{\sqrt{2}}{2}}", r"\frac{1}{\sqrt{2}}"),
        a_line("no answer at all"),
        a_line(r"\boxed{x+1}", r"\foo{"),
    ]
    status, found, errors = grade(tmp_path, "\n".join(lines), capfd)
    assert (status, errors) == (0, [])
    assert [(line["verdict"], line["reason"]) for line in found] == [
        (True, None),
        (False, "wrong"),
        (True, None),
        (False, "no_answer"),
        (None, "gold_not_parsable"),
    ]
    assert all(list(line) == ["verdict", "reason", "path", "ms"] for line in found)
    assert all(isinstance(line["path"], str) and line["ms"] >= 0 for line in found)


def test_a_line_may_tell_its_problem(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    percent, named = r"\boxed{42\%}", r"\boxed{\text{Area} = 42}"
    lines = [
        a_line(percent, problem="By what percent does it grow?"),
        a_line(percent, problem="How many are there?"),
        a_line(percent),
        a_line(named, problem="Find the area."),
        a_line(named, problem="Find the perimeter."),
        a_line(named, problem=""),
    ]
    status, found, errors = grade(tmp_path, "\n".join(lines), capfd)
    assert (status, errors) == (0, [])
    assert [line["verdict"] for line in found] == [True, False, False, True, False, True]


def test_a_hard_line_holds_up_no_other_and_the_order_stays(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    hard = a_line(r"\boxed{\sum_{k=1}^{99999999} k^{9} x}", r"\sqrt{x}")
    lines = [a_line(), hard, *[a_line(rf"\boxed{{{n}}}", "3") for n in range(5)]]
    status, found, _ = grade(tmp_path, "\n".join(lines), capfd)
    assert status == 0
    assert [line["verdict"] for line in found] == [
        True,
        False,
        *[False, False, False, True, False],
    ]


UNREADABLE = {
    "not UTF-8": (
        b'{"response": "\xff", "answer": "1"}',
        "not JSON: 'utf-8' codec can't decode byte 0xff",
    ),
    "not JSON": (b"{oops", "not JSON: Expecting property name"),
    "blank": (b"  ", "not JSON: Expecting value"),
    "no object": (b'["response"]', "no JSON object"),
    "no answer": (b'{"response": "x"}', "answer: missing"),
    "no response": (b'{"answer": "x"}', "response: missing"),
    "a number": (b'{"response": "x", "answer": 1}', "answer: must be text, in quotes"),
    "messages": (
        b'{"response": "x", "answer": "1", "problem": []}',
        "problem: must be text, in quotes",
    ),
    "brackets without end": (b"[" * 100_000, "not JSON: maximum recursion depth"),
    "a number without end": (b"9" * 5000, "not JSON: Exceeds the limit"),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_a_line_that_cannot_be_read_has_its_place_and_a_message(
    case: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    line, problem = UNREADABLE[case]
    good = a_line().encode()
    status, found, errors = grade(tmp_path, b"\n".join([good, line, good]), capfd)
    assert status == 2
    assert [(line["verdict"], line["reason"]) for line in found] == [
        (True, None),
        (None, "unreadable_line"),
        (True, None),
    ]
    (error,) = errors
    assert error.startswith(f"weir grade: line 2: {problem}")


def test_odd_characters_are_graded_and_not_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    odd = [
        r'{"response": "\ud800 \\boxed{42}", "answer": "42"}',
        r'{"response": "\\boxed{\udfff}", "answer": "42"}',
        r'{"response": "\\boxed{42}", "answer": "\ud800"}',
        r'{"response": "\u0000\\boxed{\u00004\u00002}", "answer": "42"}',
        r'{"response": "\\boxed{42}\u2028", "answer": "42"}',
    ]
    text = "\ufeff" + "\r\n".join(odd)
    status, found, errors = grade(tmp_path, text, capfd)
    assert (status, errors) == (0, [])
    assert len(found) == 5
    assert (found[0]["verdict"], found[1]["verdict"], found[4]["verdict"]) == (True, False, True)


def test_a_line_of_fifty_megabytes_is_graded_and_a_longer_one_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    long, longer = a_line("x" * (50 << 20)), a_line("x" * MAX_LINE_BYTES)
    status, found, errors = grade(tmp_path, "\n".join([long, longer, a_line()]), capfd)
    assert status == 2
    assert [line["reason"] for line in found] == ["too_long", "unreadable_line", None]
    assert errors == ["weir grade: line 2: longer than 64 MiB"]


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
