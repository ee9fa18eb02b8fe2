"""Expected numbers of the formulas, worked out elsewhere to six decimals."""

import copy
import json
from pathlib import Path

import pytest

from tests.golden.__main__ import KINDS, Case, load, main, problems

FILE = Path(__file__).with_name("golden.json")
CASES, ATOL = load(FILE)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_case_is_as_expected(case: Case) -> None:
    assert problems(case, ATOL) == []


def test_every_kind_has_a_case() -> None:
    assert {case.fn for case in CASES} == set(KINDS)


def test_the_command_names_each_failed_case(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = json.loads(FILE.read_text())
    right, tampered, unknown, broken, silent = copy.deepcopy(content["cases"][:5])
    tampered["expected"]["dr_grpo"][2] += 1e-5
    unknown["fn"] = "guesswork"
    del broken["inputs"]["orm"]
    silent["expected"] = {"unheard_of": 1.0}
    path = tmp_path / "cases.json"
    cases = [right, tampered, unknown, broken, silent]
    path.write_text(json.dumps({**content, "cases": cases}))
    assert main([str(path), str(FILE)]) == 1
    *failed, total = capsys.readouterr().out.splitlines()
    assert [line.removeprefix(f"{path}: ").partition(": ")[0] for line in failed] == [
        case["id"] for case in (tampered, unknown, broken, silent)
    ]
    assert total == f"{len(CASES) + 1} passed, 4 failed"


@pytest.mark.parametrize(
    ("content", "field"),
    [
        ("{", "JSON"),
        ("{}", "meta"),
        ('{"meta": {"note": "atol 1e-6 in float64"}, "cases": []}', "cases"),
        (FILE.read_text().replace("atol 2e-6", "atol inf"), "meta.note"),
    ],
    ids=["no JSON", "no note", "no case", "no tolerance"],
)
def test_a_file_without_cases_is_bad_input(
    content: str, field: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cases.json"
    assert main([str(path)]) == 2
    path.write_text(content)
    capsys.readouterr()
    assert main([str(path)]) == 2
    assert field in capsys.readouterr().err
