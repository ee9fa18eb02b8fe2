"""Expected numbers of the formulas, worked out elsewhere to six decimals."""

import copy
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.golden.__main__ import main
from tests.golden.comparison import differences
from tests.golden.run import KINDS, load, problems

FILE = Path(__file__).with_name("golden.json")
ROOT = Path(__file__).parents[2]
CASES, ATOL = load(FILE)
WITH_NUMBERS = [case for case in CASES if not isinstance(case["expected"], str)]


def run(*paths: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.golden", *map(str, paths)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def numbers_in(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place of a number or truth value within nested lists and mappings."""
    places = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in places:
        if isinstance(item, dict | list):
            yield from numbers_in(item)
        else:
            yield value, key


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_a_case_is_as_expected(case: dict[str, Any]) -> None:
    assert problems(case, ATOL) == []


@pytest.mark.parametrize("case", WITH_NUMBERS, ids=lambda case: case["id"])
def test_no_expected_value_can_be_changed_unnoticed(case: dict[str, Any]) -> None:
    right = KINDS[case["fn"]](case["inputs"], list(case["expected"]))
    expected = copy.deepcopy(case["expected"])
    for holder, key in numbers_in(expected):
        kept, holder[key] = holder[key], _changed(holder[key])
        assert len(list(differences(expected, right, ATOL))) == 1, (key, kept)
        holder[key] = kept


def _changed(value: Any) -> Any:
    return not value if isinstance(value, bool) else value + 1e-5


def test_every_kind_has_a_case() -> None:
    assert {case["fn"] for case in CASES} == set(KINDS)


@pytest.mark.parametrize(
    ("expected", "got", "wrong"),
    [
        ({"a": 1.0}, {"a": 1.0, "b": 2.0}, []),
        ({"a": 1.0, "b": 2.0}, {"a": 1.0}, ["b: expected 2.0, but nothing computes this key"]),
        ({}, {"a": 1.0}, ["expected: names nothing to compare"]),
        ([1.0], [1.0, 2.0], ["value: expected 1 values [1.0], got [1.0, 2.0]"]),
        ([[1.0, 2.0]], [[1.0, 3.0]], ["[0][1]: expected 2.0, got 3.0"]),
        (1.0, float("nan"), ["value: expected 1.0, got nan"]),
        (True, 1, ["value: expected True, got 1"]),
        ("nan_or_guard", 0.5, ["value: expected nan_or_guard, got 0.5"]),
        ("nan_or_guard", None, []),
        (1.0, 1.0 + 1.9e-6, []),
    ],
)
def test_a_comparison_misses_nothing(expected: Any, got: Any, wrong: list[str]) -> None:
    assert list(differences(expected, got, ATOL)) == wrong


def test_the_command_says_how_many_passed() -> None:
    finished = run(FILE)
    assert (finished.returncode, finished.stdout) == (0, f"{len(CASES)} passed, 0 failed\n")


def test_the_command_names_each_failed_case(tmp_path: Path) -> None:
    content = json.loads(FILE.read_text())
    right, tampered, unknown, broken = copy.deepcopy(content["cases"][:4])
    tampered["expected"]["dr_grpo"][2] += 1e-5
    unknown["fn"] = "guesswork"
    del broken["inputs"]["orm"]
    path = tmp_path / "cases.json"
    path.write_text(json.dumps({**content, "cases": [right, tampered, unknown, broken]}))

    finished = run(path, FILE)

    lines = finished.stdout.splitlines()
    assert finished.returncode == 1
    assert lines[0].startswith(f"{path}: {tampered['id']}: dr_grpo[2]: expected ")
    assert lines[1].startswith(f"{path}: {unknown['id']}: unknown kind 'guesswork'")
    assert lines[2] == f"{path}: {broken['id']}: KeyError: 'orm'"
    assert lines[3:] == [f"{len(CASES) + 1} passed, 3 failed"]


CASE = {"id": "a", "fn": "kl", "inputs": {}, "expected": {}}
NOTE = {"note": "atol 2e-6 in float64"}
EXACTNESS = "meta.note must say 'atol NUMBER in float64', a finite number above 0"


def noting(note: Any) -> str:
    return json.dumps({"meta": {"note": note}, "cases": [CASE]})


def with_cases(cases: Any) -> str:
    return json.dumps({"meta": NOTE, "cases": cases})


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{}", EXACTNESS),
        ("[]", EXACTNESS),
        ("{", "not valid JSON: "),
        ("\xff", "not valid JSON: "),
        (noting(""), EXACTNESS),
        (noting(["atol 1 in float64"]), EXACTNESS),
        (noting("atol 2e-6, in float64"), EXACTNESS),
        (noting("atol 2e-6; in float64"), EXACTNESS),
        (noting("atol small in float64"), EXACTNESS),
        (noting("atol nan in float64"), EXACTNESS),
        (noting("atol inf in float64"), EXACTNESS),
        (noting("atol 0 in float64"), EXACTNESS),
        (noting("atol -1 in float64"), EXACTNESS),
        (with_cases([]), "cases must be a list of at least one case"),
        (with_cases({}), "cases must be a list of at least one case"),
        (with_cases([1]), "cases[0] must be an object"),
        (with_cases([CASE, {**CASE, "fn": None}]), "cases[1].fn must be a text"),
        (with_cases([{"id": "a"}]), "cases[0].fn must be a text"),
        (with_cases([{**CASE, "inputs": []}]), "cases[0].inputs must be an object"),
        (with_cases([{**CASE, "id": 1}]), "cases[0].id must be a text"),
        (with_cases([{"id": "a", "fn": "kl", "inputs": {}}]), "cases[0].expected is missing"),
    ],
)
def test_a_file_that_holds_no_cases_is_bad_input(
    text: str, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cases.json"
    path.write_text(text, encoding="latin-1")
    assert main([str(path)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"{path}: {complaint}")


def test_a_file_that_cannot_be_read_is_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"{tmp_path}: Is a directory\n"
    assert main([str(tmp_path / "none.json")]) == 2
    assert capsys.readouterr().err == f"{tmp_path / 'none.json'}: No such file or directory\n"


def test_the_command_without_files_or_with_help_shows_its_usage(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([]) == 2
    assert capsys.readouterr().err.startswith("usage: ")
    assert main(["--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: ")
