"""Boundaries that a reader relies on, kept by tools."""

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from protocol import recipe
from protocol.recipe import load_recipe
from protocol.tasks import read_tasks

from services.grader.verifiers import VERIFIERS
from services.learner.algorithms.advantages import ADVANTAGES
from services.learner.algorithms.aggregation import AGGREGATIONS
from services.learner.algorithms.objectives import OBJECTIVES

ROOT = Path(__file__).parents[2]
PRODUCT = [
    path
    for folder in ("proto", "services", "deploy", "examples")
    for path in (ROOT / folder).rglob("*.py")
]
DOCUMENTS = [
    path
    for path in ROOT.rglob("*.md")
    if not {".venv", "runs", ".weir"} & set(path.relative_to(ROOT).parts)
]


def test_services_meet_only_in_the_protocol() -> None:
    linted = subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports"))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert linted.returncode == 0, linted.stdout


@pytest.mark.parametrize(
    ("names", "table"),
    [
        (recipe.AdvantageName, ADVANTAGES),
        (recipe.ObjectiveName, OBJECTIVES),
        (recipe.AggregationName, AGGREGATIONS),
        (recipe.VerifierName, VERIFIERS),
    ],
)
def test_a_recipe_may_name_exactly_what_the_tables_hold(
    names: object, table: dict[str, object]
) -> None:
    assert set(get_args(names)) == set(table)


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").glob("*.toml")), ids=lambda p: p.name)
def test_every_recipe_parses_and_its_files_are_there(path: Path) -> None:
    loaded = load_recipe(path)
    assert (ROOT / loaded.model.path / "config.json").is_file()
    for tasks in filter(None, (loaded.tasks.train, loaded.tasks.held_out)):
        assert read_tasks(ROOT / tasks)


def test_the_demos_differ_only_in_their_advantage() -> None:
    papo, grpo = (load_recipe(ROOT / "recipes" / f"demo{kind}.toml") for kind in ("", "-grpo"))
    changes = {"name": papo.name, "algorithm": papo.algorithm}
    assert papo == grpo.model_copy(update=changes)
    assert (papo.algorithm.advantage, grpo.algorithm.advantage) == ("papo", "grpo")


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_documents_name_files_that_exist(path: Path) -> None:
    named = re.findall(
        r"`((?:proto|services|deploy|examples|tests|recipes)/[\w./-]*)`", path.read_text()
    )
    missing = [name for name in named if not (ROOT / name).exists()]
    links = re.findall(r"\]\((?!https?://|#)([^)\s]+)\)", path.read_text())
    missing += [link for link in links if not (path.parent / link).exists()]
    assert not missing


def test_functions_can_be_read_in_one_breath() -> None:
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in PRODUCT
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or node.lineno) - node.lineno >= 50
    ]
    assert not long
