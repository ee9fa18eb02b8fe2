"""A step that the learner kept is graded again, by the grader's own process."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from protocol.messages import Graded, GradedGroup, Ungradable
from protocol.recipe import Purpose, Recipe

from services.learner import replay
from services.learner.durable.sample_rows import Row, build_rows
from services.learner.plan import resolved_toml
from services.learner.training.scoring import ScoredGroup, Scoring
from tests.builders import (
    a_failed_group,
    a_graded_group,
    a_group,
    a_recipe,
    a_request,
    a_task,
    an_episodes_group,
)
from tests.sample_stores import write_samples
from tests.unit.learner.groups import BROKEN, grades

# The answer is 12. By these steps the process scores differ among the correct ones.
TEXTS = (
    r"3 \cdot 2 = 6, 6 + 6 = 12. So \boxed{12}",
    r"3 \cdot 2 = 6, 6 + 6 = 12, 3 + 2 = 4. So \boxed{12}",
    r"3 \cdot 2 = 7, 6 + 6 = 11. So \boxed{12}",
    r"3 \cdot 2 = 6, 6 + 6 = 13. So \boxed{13}",
    "I do not know",
)
STEP = 4
RECIPE = a_recipe(rollout={"group_size": 5})
GROUP = a_group(
    a_request(
        number=5,
        group_size=5,
        task=a_task(prompt="Add 6 to 3 times 2.", answer="12"),
    ),
    lengths=[2, 3, 4, 2, 8],
    texts=TEXTS,
)
# As the grader grades it by `RECIPE`.
OUTCOMES = [1, 1, 1, Graded(value=0, reason="wrong"), Graded(value=0, reason="no_answer")]
PROCESS = [1, *(Graded(value=value, reason="wrong_equations") for value in (0.5, 0))]
GRADED = a_graded_group(GROUP, grades=grades(OUTCOMES, PROCESS))


class Job:
    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.samples = folder / "jobs/job/samples"
        self.capsys = capsys

    def write(self, recipe: Recipe, *groups: GradedGroup, attempt: int = 1) -> None:
        """Write groups of a step, and others of the step before, as a learner would."""
        self.samples.mkdir(parents=True, exist_ok=True)
        (self.samples / "recipe.json").write_text(recipe.model_dump_json())
        rows = list[list[Row]]()
        for step in (STEP - 1, STEP):
            for group in groups:
                moved = group.model_copy(update={"number": group.number + 1000 * (STEP - step)})
                scoring = Scoring.of(recipe)
                if group.purpose is Purpose.EVAL:
                    scoring = scoring.comparison_only
                scored = [ScoredGroup(moved, scoring)]
                rows += build_rows(scored, {}, attempt=attempt, step=step, created_at=1.0)
        write_samples(self.samples, *rows)

    def replay(
        self, *arguments: str, recipe: Recipe | None = None, step: int = STEP
    ) -> tuple[int, str]:
        """The exit status, and what is printed."""
        if recipe is not None:
            path = self.folder / "recipe.toml"
            path.write_text("\n".join(resolved_toml(recipe)))
            arguments = (*arguments, "--recipe", str(path))
        status = replay.main(["job", "--step", str(step), *arguments])
        return status, "".join(self.capsys.readouterr())


@pytest.fixture
def job(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Job:
    monkeypatch.setenv("WEIR_DATA_DIR", str(tmp_path))
    monkeypatch.delenv("WEIR_JUDGE_URL", raising=False)
    return Job(tmp_path, capsys)


@pytest.fixture
def fake_grader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the grader's process by the grades that it gave before."""
    monkeypatch.setattr(replay, "regrade", lambda groups, recipe: [GRADED for _ in groups])


def test_by_its_own_recipe_nothing_changes(job: Job) -> None:
    request = GROUP.request.model_copy(update={"purpose": Purpose.EVAL})
    evaluated = GROUP.model_copy(update={"request": request})
    job.write(
        RECIPE,
        GRADED,
        a_graded_group(evaluated, grades=GRADED.grades),
        a_failed_group(7),
    )
    status, page = job.replay()
    assert status == 0
    assert "3 groups (1 failed" in page
    assert "10 responses" in page
    assert "train:5/" not in page


def test_the_rewards_of_environments_are_those_that_were_kept(job: Job) -> None:
    recipe = a_recipe(
        environment={"taskset": "gone"},
        algorithm={"advantage": "grpo"},
        reward={"process": None},
    )
    group = an_episodes_group(1.0, None, 0.25)
    job.write(
        recipe,
        a_graded_group(group, grades=grades([1, BROKEN, 0.25])),
    )
    status, page = job.replay()
    assert status == 0
    assert "nothing changes" in page
    assert "no episode is played again" in page


@pytest.mark.usefixtures("fake_grader")
def test_with_another_lambda_the_advantage_moves_by_its_multiple_and_with_a_critic_it_has_none(
    job: Job,
) -> None:
    job.write(RECIPE, GRADED)
    other = a_recipe(algorithm={"lambda_process": 0.25})
    status, page = job.replay("--json", recipe=other)
    assert status == 0
    result = json.loads(page)
    process = np.array([1, 0.5, 0])
    expected = [*(process - process.mean()) / (process.std(ddof=1) + 1e-6), 0, 0]
    moved = [r["after"]["advantage"] - r["before"]["advantage"] for r in result["responses"]]
    assert moved == pytest.approx(-0.75 * np.array(expected), abs=1e-5)
    difference = result["mean_absolute_difference"]["advantage"]
    assert difference == pytest.approx(np.abs(moved).mean(), abs=1e-12)
    assert [name for name, count in result["changed"].items() if count] == ["advantage"]
    with_critic = a_recipe(
        algorithm={"advantage": "gae"},
        critic={},
        reward={"process": None},
    )
    _, page = job.replay("--json", recipe=with_critic)
    assert not json.loads(page)["has_advantages"]


@pytest.mark.usefixtures("fake_grader")
def test_a_step_whose_grades_were_others_is_told_response_by_response(job: Job) -> None:
    job.write(RECIPE, GRADED)
    others = grades([*OUTCOMES[:3], 1, Ungradable(reason="starved")], PROCESS)
    job.write(RECIPE, a_graded_group(GROUP, grades=others), attempt=2)
    status, page = job.replay()
    assert status == 1
    changed = [line for line in page.splitlines() if line.startswith("train:5/")]
    assert "1 → 0" in changed[3]
    assert "starved → 0" in changed[4]


def test_what_is_missing_is_bad_input(job: Job) -> None:
    job.write(RECIPE, a_graded_group())
    status, page = job.replay(step=9)
    assert status == 2
    assert f"of steps {STEP - 1} to {STEP}" in page
    (damaged,) = job.samples.glob(f"*{STEP - 1}-train-*")
    damaged.write_bytes(damaged.read_bytes()[:-9])
    status, page = job.replay(step=STEP - 1)
    assert (status, damaged.name in page) == (2, True)
    assert job.replay(recipe=a_recipe(reward={"process": "model_judge"}))[0] == 2
    (job.samples / "recipe.json").unlink()
    assert job.replay()[0] == 2
    assert replay.main(["another", "--step", "1"]) == 2
    assert "WEIR_DATA_DIR" in job.capsys.readouterr().err
