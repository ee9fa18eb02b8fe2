"""The examples of environments: valid recipes, a tool and a game that are right, their model."""

import json
import random
from pathlib import Path

import pytest
from protocol.recipe import load_recipe
from protocol.tasks import read_tasks
from transformers import AutoTokenizer

from examples.arithmetic.tasks import ArithmeticTask
from examples.environments import base_model, game, sums
from services.learner.sft.recipe import load_sft_recipe
from tests.tables import table

EXAMPLE = Path(base_model.__file__).parent
TASK = ArithmeticTask(47, (8, -6, 7))


@table("""
    name            | kind
    sum-then-check  | taskset
    higher-or-lower | url
    agent-script    | command
""")
def test_a_recipe_names_its_environment_and_files_that_are_there(name: str, kind: str) -> None:
    recipe = load_recipe(EXAMPLE / f"{name}.toml")
    assert recipe.environment is not None
    assert getattr(recipe.environment, kind)
    assert [check.verifier for check in recipe.reward.outcome] == ["environment"]
    assert Path(recipe.model.path, "chat_template.jinja").is_file()
    for path in (recipe.tasks.train, str(recipe.tasks.held_out)):
        assert read_tasks(Path(path))


@pytest.mark.parametrize(
    ("said", "reply"),
    [
        ("47+8=55;55-6=49;", "right."),
        ("47+8=45;55-6=49;", "right."),  # the total counts, not how it came about
        ("47+8=55;55-6=39;", "wrong: 49."),
        ("47+8-6=48;", "wrong: 49."),
        ("2-9=-7;", "right."),
        ("47+8", "no equation."),
        ("", "no equation."),
    ],
)
def test_the_tool_adds_up_the_terms_of_the_chain(said: str, reply: str) -> None:
    assert sums.check(said) == reply


def test_the_last_boxed_number_is_the_answer() -> None:
    assert sums.is_answer(r"49+7=56;\boxed{56}")
    assert not sums.is_answer("49+7=56;")
    texts = (r"\boxed{55} no, \boxed{56}", r"\boxed{56}, \boxed{55}", "56")
    assert [sums.reward(text, "56") for text in texts] == [1, 0, 0]


def test_bisection_finds_all_numbers_but_one_in_five_guesses() -> None:
    found = 0
    for number in game.NUMBERS:
        played, low, high = game.Game(number), game.NUMBERS[0], game.NUMBERS[-1]
        while not played.done:
            guess = (low + high) // 2
            played.guess(f"{guess}")
            low, high = (guess + 1, high) if played.text == "higher." else (low, guess - 1)
        found += played.reward == 1
        assert played.guesses <= game.GUESSES
    assert found == len(game.NUMBERS) - 1


def test_the_committed_games_are_those_of_the_script() -> None:
    lines = (EXAMPLE / "games.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == list(game.records())


def test_the_base_model_has_read_what_the_chat_template_writes() -> None:
    tokenizer = AutoTokenizer.from_pretrained(EXAMPLE / "base-model")
    asked = (base_model.play_sum(TASK, random.Random(seed)) for seed in range(20))
    (prompt, said), (before, _) = next(turns for turns in asked if len(turns) == 2)
    messages = [
        {"role": "user", "content": prompt},
        {"role": "assistant", "content": said},
        {"role": "user", "content": sums.check(said)},
    ]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False)
    assert tokenizer(rendered, add_special_tokens=False).input_ids == tokenizer(before).input_ids


def test_weir_sft_finds_what_the_script_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = load_sft_recipe(EXAMPLE / "sft.toml")
    monkeypatch.setattr(base_model, "ARITHMETIC", Path("examples/arithmetic/base-model").absolute())
    monkeypatch.setattr(base_model, "NUM_SUMS", 10)
    monkeypatch.setattr(base_model, "NUM_GAMES", 2)
    monkeypatch.chdir(tmp_path)
    base_model.write_parts(base_model.FOLDER)
    assert len(read_tasks(Path(recipe.tasks.train))) > 12
    assert Path(recipe.model.path, "chat_template.jinja").read_text() == base_model.CHAT_TEMPLATE
