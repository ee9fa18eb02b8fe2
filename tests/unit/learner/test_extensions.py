"""Formulas of an extension, as docs/how-to/algorithm.md shows, and the errors for a missing one."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from services.chassis.deployment import Deployment
from services.learner.algorithms import UnknownName, pick
from services.learner.algorithms.advantages import ADVANTAGES, GroupScores
from services.learner.algorithms.loss import AGGREGATIONS, Totals
from services.learner.formulas import check_formulas, formula_settings
from services.learner.training.samples import build_samples
from services.learner.training.scoring import ScoredGroup, Scoring
from tests.architecture.project import ROOT
from tests.builders import a_graded_group, a_group, a_recipe

MODULE = re.compile(r'```python\n("""my_lab\.squared.*?)```', re.DOTALL)


@pytest.fixture
def my_lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The module of the document, loaded as the learner loads it."""
    (module,) = MODULE.findall((ROOT / "docs/how-to/algorithm.md").read_text())
    (tmp_path / "my_lab.py").write_text(module)
    monkeypatch.syspath_prepend(tmp_path)
    address = {"WEIR_REDIS_URL": "redis://x", "WEIR_DATA_DIR": "/data", "WEIR_PORT": "8000"}
    Deployment.from_environment({**address, "WEIR_EXTENSIONS": "my_lab"}).load_extensions()
    yield
    del sys.modules["my_lab"]
    del ADVANTAGES["my_lab.squared"]


@pytest.mark.usefixtures("my_lab")
def test_an_advantage_from_outside_is_found_by_its_name() -> None:
    recipe = a_recipe(algorithm={"advantage": "my_lab.squared"})
    check_formulas(recipe)
    group = a_graded_group(
        a_group(lengths=[1, 1, 1, 1]),
        [1, 0, 0, 0],
    )
    samples, _ = build_samples(
        [ScoredGroup(group, Scoring.of(recipe))],
        attempt=1,
        version=0,
    )
    assert [sample.advantage for sample in samples] == [0.5625] + [-0.0625] * 3


@pytest.mark.parametrize("field", ["advantage", "objective", "aggregation"])
def test_a_formula_that_no_table_holds_is_named_with_the_remedy(field: str) -> None:
    algorithm = {"advantage": "grpo", field: "my_lab.missing"}
    with pytest.raises(UnknownName, match=f"^algorithm.{field}: .*WEIR_EXTENSIONS"):
        check_formulas(a_recipe(algorithm=algorithm))


def test_with_a_critic_the_advantage_is_sought_among_those_that_use_it() -> None:
    check_formulas(a_recipe(algorithm={"advantage": "gae"}, critic={}))
    with pytest.raises(UnknownName, match="decoupled_gae"):
        check_formulas(
            a_recipe(
                algorithm={"advantage": "my_lab.missing"},
                critic={},
            )
        )


def test_an_entry_that_needs_a_setting_which_no_recipe_has_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def spread(scores: GroupScores, *, spread: float) -> Tensor:
        return scores.reward * spread

    monkeypatch.setitem(ADVANTAGES, "my_lab.spread", spread)
    with pytest.raises(UnknownName, match=r"my_lab\.spread .*spread$"):
        check_formulas(a_recipe(algorithm={"advantage": "my_lab.spread"}))


def test_the_fixed_length_of_an_episode_is_that_of_all_its_turns() -> None:
    recipe = a_recipe(environment={"url": "http://games", "max_turns": 3})  # of 8 tokens each
    weigh = pick(AGGREGATIONS, "fixed_length", formula_settings(recipe))
    totals = Totals(
        tokens=30,
        sequences=2,
        positive_tokens=0,
    )
    assert weigh(torch.ones(1), totals).tolist() == pytest.approx([1 / (2 * 24)])
