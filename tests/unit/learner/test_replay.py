"""A step that the learner kept is graded again, by the grader's own process."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from protocol.messages import Grade, Graded, GradedGroup, Ungradable
from protocol.recipe import Purpose, Recipe, parse_recipe

from services.learner import replay
from services.learner.durable.sample_rows import Row, build_rows
from services.learner.training.scoring import ScoredGroup, Scoring
from tests.builders import (
    a_failed_group,
    a_graded_group,
    a_group,
    a_request,
    a_task,
    an_episodes_group,
)
from tests.sample_stores import write_samples

# The answer is 12. By these steps the process scores differ among the correct ones.
TEXTS = (
    r"3 \cdot 2 = 6, 6 + 6 = 12. So \boxed{12}",
    r"3 \cdot 2 = 6, 6 + 6 = 12, 3 + 2 = 4. So \boxed{12}",
    r"3 \cdot 2 = 7, 6 + 6 = 11. So \boxed{12}",
    r"3 \cdot 2 = 6, 6 + 6 = 13. So \boxed{13}",
    "I do not know",
)
STEP = 4
PLAIN = """
name = "small"
model = { path = "models/tiny", dtype = "float32", max_context = 64 }
tasks = { train = "train.jsonl" }
rollout = { group_size = 5, sampling = { max_tokens = 8 } }
training = { steps = 2, groups_per_step = 2 }
"""
BY_STEPS = PLAIN + 'reward = { process = "equation_steps" }\n'
RECIPE = parse_recipe(tomllib.loads(BY_STEPS))
Write = Callable[..., None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes groups of a step, and others of the step before, as a learner would by a recipe."""
    monkeypatch.setenv("WEIR_DATA_DIR", str(tmp_path))
    samples = tmp_path / "jobs/job/samples"

    def write_groups(recipe: Recipe, *groups: GradedGroup, attempt: int = 1) -> None:
        samples.mkdir(parents=True, exist_ok=True)
        (samples / "recipe.json").write_text(recipe.model_dump_json())
        rows = list[list[Row]]()
        for step in (STEP - 1, STEP):
            for group in groups:
                moved = group.model_copy(update={"number": group.number + 1000 * (STEP - step)})
                scoring = Scoring.of(recipe)
                if group.purpose is Purpose.EVAL:
                    scoring = scoring.comparison_only
                scored = [ScoredGroup(moved, scoring)]
                rows += build_rows(scored, {}, attempt=attempt, step=step, created_at=1.0)
        write_samples(samples, *rows)

    return write_groups


@pytest.fixture
def graded() -> GradedGroup:
    """As the grader grades it by `RECIPE`."""
    process = (1.0, None), (0.5, "wrong_equations"), (0.0, "wrong_equations")
    right = [
        Grade(outcome=Graded(value=1.0), process=Graded(value=value, reason=reason))
        for value, reason in process
    ]
    wrong = [Grade(outcome=Graded(value=0.0, reason=why)) for why in ("wrong", "no_answer")]
    task = a_task(prompt="Add 6 to 3 times 2.", answer="12")
    request = a_request(number=5, group_size=len(TEXTS), task=task)
    group = a_group(request, lengths=[2, 3, 4, 2, 8], texts=TEXTS)
    return a_graded_group(group, grades=[*right, *wrong])


@pytest.fixture
def fake_grader(graded: GradedGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the grader's process by the grades that it gave before."""
    monkeypatch.setattr(replay, "regrade", lambda groups, recipe: [graded for _ in groups])


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = replay.main(["job", "--step", str(STEP), *arguments])
    out, err = capsys.readouterr()
    return status, out, err


def test_by_its_own_recipe_nothing_changes(
    write: Write, graded: GradedGroup, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = a_failed_group(7)
    assert graded.group is not None
    request = graded.group.request.model_copy(update={"purpose": Purpose.EVAL})
    group = graded.group.model_copy(update={"request": request})
    evaluated = graded.model_copy(update={"purpose": Purpose.EVAL, "group": group})
    write(RECIPE, graded, evaluated, failed)
    status, out, err = run(capsys)
    assert (status, err) == (0, "")
    assert "3 groups (1 failed" in out
    assert "10 responses" in out
    assert "train:5/" not in out


def test_the_rewards_of_environments_are_those_that_were_kept(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = parse_recipe(
        tomllib.loads(
            f'{PLAIN}environment = {{ taskset = "gone" }}\nalgorithm = {{ advantage = "grpo" }}'
        )
    )
    outcomes = [Graded(value=1.0), Ungradable(reason="episode_failed"), Graded(value=0.25)]
    group = an_episodes_group(1.0, None, 0.25)
    write(recipe, a_graded_group(group, grades=[Grade(outcome=outcome) for outcome in outcomes]))
    status, out, err = run(capsys)
    assert (status, err) == (0, "")
    assert "nothing changes" in out
    assert "no episode is played again" in out


@pytest.mark.usefixtures("fake_grader")
def test_with_another_lambda_the_advantage_moves_by_its_multiple_and_with_a_critic_it_has_none(
    write: Write, graded: GradedGroup, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    write(RECIPE, graded)
    other = tmp_path / "other.toml"
    other.write_text(BY_STEPS + "algorithm = { lambda_process = 0.25 }")
    status, out, err = run(capsys, "--recipe", str(other), "--json")
    assert (status, err) == (0, "")
    result = json.loads(out)
    process = np.array([grade.process_score for grade in graded.grades[:3]])
    expected = np.zeros(len(TEXTS))
    expected[:3] = (process - process.mean()) / (process.std(ddof=1) + 1e-6)
    moved = [r["after"]["advantage"] - r["before"]["advantage"] for r in result["responses"]]
    assert moved == pytest.approx(-0.75 * expected, abs=1e-5)
    assert result["mean_absolute_difference"]["advantage"] == pytest.approx(
        np.abs(moved).mean(), abs=1e-12
    )
    changed = {name for name, count in result["changed"].items() if count}
    assert changed == {"advantage"}
    other.write_text(PLAIN + 'algorithm = { advantage = "gae" }\ncritic = {}')
    _, out, _ = run(capsys, "--recipe", str(other), "--json")
    assert not json.loads(out)["has_advantages"]


@pytest.mark.usefixtures("fake_grader")
def test_a_step_whose_grades_were_others_is_told_response_by_response(
    write: Write, graded: GradedGroup, capsys: pytest.CaptureFixture[str]
) -> None:
    grades = list(graded.grades)
    grades[3] = Grade(outcome=Graded(value=1.0))
    grades[4] = Grade(outcome=Ungradable(reason="starved"))
    write(RECIPE, graded)
    write(RECIPE, graded.model_copy(update={"grades": tuple(grades)}), attempt=2)
    status, out, _ = run(capsys)
    assert status == 1
    (row,) = (line for line in out.splitlines() if line.startswith("train:5/3"))
    assert "1 → 0" in row
    (row,) = (line for line in out.splitlines() if line.startswith("train:5/4"))
    assert "starved → 0" in row


def test_what_is_missing_is_bad_input(
    write: Write,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write(RECIPE, a_graded_group())
    assert replay.main(["job", "--step", "9"]) == 2
    assert f"of steps {STEP - 1} to {STEP}" in capsys.readouterr().err
    (damaged,) = (tmp_path / "jobs/job/samples").glob(f"*{STEP - 1}-train-*")
    damaged.write_bytes(damaged.read_bytes()[:-9])
    assert replay.main(["job", "--step", str(STEP - 1)]) == 2
    assert damaged.name in capsys.readouterr().err
    monkeypatch.delenv("WEIR_JUDGE_URL", raising=False)
    judged = tmp_path / "judged.toml"
    judged.write_text(PLAIN + 'reward = { process = "model_judge" }')
    assert run(capsys, "--recipe", str(judged))[0] == 2
    (tmp_path / "jobs/job/samples/recipe.json").unlink()
    assert run(capsys)[0] == 2
    assert replay.main(["another", "--step", "1"]) == 2
    assert "WEIR_DATA_DIR" in capsys.readouterr().err
