"""The arithmetic example: valid tasks, an honest split, a base model that is the recorded one."""

import hashlib
import json
import random
import re
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from protocol.tasks import read_tasks

from examples.arithmetic import authors, base_model, measure, tasks
from services.learner.sft.recipe import load_sft_recipe

EXAMPLE = Path(tasks.__file__).parent
SHIPPED_MODEL = EXAMPLE / "base-model"
# With other weights all that was measured with these, in documents too, is to be measured anew.
SHIPPED_WEIGHTS_SHA256 = "7db468bb376fddc1a22446cf8593c5531b6424db327fe938a8482111fa162f67"
TASK_FILES = ("train.jsonl", "held_out.jsonl")
PROMPT = re.compile(r"(\d\d)([+-][1-9])([+-][1-9])([+-][1-9])=\?")


def read_records(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (EXAMPLE / name).read_text().splitlines()]


def careless_solutions(count: int, habits: authors.Habits) -> list[tuple[str, str]]:
    """Pairs of the right answer, boxed, and what the careless author wrote."""
    rng = random.Random(5)
    drawn = [tasks.draw_task(rng) for _ in range(count)]
    return [
        (tasks.boxed(task.totals[-1]), authors.write_careless_solution(task, rng, habits))
        for task in drawn
    ]


def share_right(pairs: list[tuple[str, str]]) -> float:
    return sum(text.endswith(answer) for answer, text in pairs) / len(pairs)


class TestTasks:
    def test_the_documented_example(self) -> None:
        task = tasks.ArithmeticTask(47, (8, -6, 7))
        assert task.prompt == "47+8-6+7=?"
        assert task.answer == "56"
        assert task.solution == r"47+8=55;55-6=49;49+7=56;\boxed{56}"

    @pytest.mark.parametrize("name", TASK_FILES)
    def test_every_committed_task_is_valid(self, name: str) -> None:
        for record in read_records(name):
            match = PROMPT.fullmatch(record["prompt"])
            assert match is not None
            total, equations = int(match[1]), ""
            assert 10 <= total <= 89
            for step in match.groups()[1:]:
                equations += f"{total}{step}="
                total += int(step)
                equations += f"{total};"
                assert 0 <= total <= 99
            assert record["answer"] == str(total)
            assert record["solution"] == f"{equations}\\boxed{{{total}}}"

    def test_the_split_is_disjoint_and_every_task_distinct(self) -> None:
        train, held_out = (
            {record["prompt"] for record in read_records(name)} for name in TASK_FILES
        )
        assert (len(train), len(held_out)) == (4_000, 512)
        assert not train & held_out
        ids = {record["id"] for name in TASK_FILES for record in read_records(name)}
        assert len(ids) == 4_512

    def test_the_side_of_a_prompt_never_changes(self) -> None:
        # 458db0ae… and ac8ef08c… begin the digests of these two prompts, whatever drew them.
        assert not tasks.ArithmeticTask(29, (-1, -6, 2)).is_held_out
        assert tasks.ArithmeticTask(77, (-8, -4, -6)).is_held_out

    def test_the_generator_makes_the_committed_files(self, tmp_path: Path) -> None:
        tasks.write_task_files(tmp_path)
        for name in TASK_FILES:
            assert (tmp_path / name).read_bytes() == (EXAMPLE / name).read_bytes()


class TestAuthors:
    def test_without_bad_habits_the_careless_author_is_right(self) -> None:
        flawless = authors.Habits(forgets_carry=0, slips=0, merges=0, recovers=0)
        assert share_right(careless_solutions(500, flawless)) == 1

    def test_a_merged_step_leaves_two_equations(self) -> None:
        merger = authors.Habits(forgets_carry=0, slips=0, merges=1, recovers=0)
        pairs = careless_solutions(500, merger)
        assert {text.count("=") for _, text in pairs} == {2}
        assert share_right(pairs) == 1

    def test_error_rates_of_single_additions(self) -> None:
        rng = random.Random(5)
        crossing = [authors.add_carelessly(47, 8, rng, authors.CARELESS) for _ in range(5_000)]
        plain = [authors.add_carelessly(42, 5, rng, authors.CARELESS) for _ in range(5_000)]
        assert crossing.count(45) / 5_000 == pytest.approx(0.82, abs=0.02)
        assert plain.count(47) / 5_000 == pytest.approx(0.92, abs=0.02)
        assert set(plain) == {45, 46, 47, 48, 49}

    def test_a_forgotten_borrow(self) -> None:
        forgetful = authors.Habits(forgets_carry=1)
        assert authors.add_carelessly(55, -6, random.Random(5), forgetful) == 59

    def test_how_often_the_data_are_right(self) -> None:
        rng = random.Random(5)
        drawn = [tasks.draw_task(rng) for _ in range(5_000)]
        pairs = [
            (tasks.boxed(task.totals[-1]), authors.write_solution(task, rng)) for task in drawn
        ]
        assert share_right(pairs) == pytest.approx(0.48, abs=0.03)
        assert share_right(careless_solutions(5_000, authors.CARELESS)) == pytest.approx(
            0.41, abs=0.03
        )

    def test_imperfect_data_are_well_formed(self) -> None:
        pairs = careless_solutions(2_000, authors.CARELESS)
        assert all(measure.RESPONSE.fullmatch(text) for _, text in pairs)


class TestScores:
    TASK = tasks.ArithmeticTask(47, (8, -6, 7))

    @pytest.mark.parametrize(
        ("text", "correct", "process"),
        [
            (r"47+8=55;55-6=49;49+7=56;\boxed{56}", True, 1),
            (r"47+8=45;55-6=49;49+7=56;\boxed{56}", True, 2 / 3),
            (r"47+8-6=49;49+7=56;\boxed{56}", True, 2 / 3),
            (r"47+8=55;55-6=49;49+7=46;\boxed{46}", False, 2 / 3),
        ],
    )
    def test_of_well_formed_responses(self, text: str, correct: bool, process: float) -> None:
        score = measure.score_response(self.TASK, text)
        assert score.well_formed
        assert (score.correct, score.process) == (correct, pytest.approx(process))

    def test_of_a_malformed_response(self) -> None:
        score = measure.score_response(self.TASK, r"47+8=55;;\boxed{56}")
        assert not score.well_formed
        assert not score.correct


class TestBaseModel:
    def test_tokenizer_round_trip(self) -> None:
        tokenizer = measure.AutoTokenizer.from_pretrained(SHIPPED_MODEL)
        text = r"47+8-6+7=?47+8=55; \boxed{56} and so on"
        token_ids = tokenizer(text)["input_ids"]
        assert len(token_ids) == 1 + len(text)
        assert token_ids[0] == tokenizer.bos_token_id
        assert tokenizer.decode(token_ids, skip_special_tokens=True) == text
        assert tokenizer("".join(base_model.CHARACTERS))["input_ids"] == [1, *range(3, 96)]

    def test_tokenizer_special_tokens_and_size(self) -> None:
        tokenizer = measure.AutoTokenizer.from_pretrained(SHIPPED_MODEL)
        special = (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id)
        assert special == (0, 1, 2)
        assert len(tokenizer) == base_model.VOCABULARY_SIZE == 96

    def test_the_shipped_tokenizer_is_the_one_that_the_script_makes(self, tmp_path: Path) -> None:
        base_model.make_tokenizer().save_pretrained(tmp_path)
        made = (tmp_path / "tokenizer.json").read_text()
        assert json.loads(made) == json.loads((SHIPPED_MODEL / "tokenizer.json").read_text())

    def test_the_folder_loads_and_is_small(self) -> None:
        model = measure.AutoModelForCausalLM.from_pretrained(SHIPPED_MODEL)
        assert model.num_parameters() == 604_288
        assert model.dtype == torch.float16
        assert model.generation_config.eos_token_id == 2
        assert sum(file.stat().st_size for file in SHIPPED_MODEL.iterdir()) <= 3_000_000

    def test_the_weights_are_the_recorded_ones(self) -> None:
        weights = (SHIPPED_MODEL / "model.safetensors").read_bytes()
        assert hashlib.sha256(weights).hexdigest() == SHIPPED_WEIGHTS_SHA256

    def test_it_answers_in_form_and_is_often_wrong(self) -> None:
        model = measure.AutoModelForCausalLM.from_pretrained(SHIPPED_MODEL, dtype=torch.float32)
        tokenizer = measure.AutoTokenizer.from_pretrained(SHIPPED_MODEL)
        drawn = tasks.distinct_tasks(100, held_out=True)
        scores = [
            score
            for group in measure.score_groups(model, tokenizer, drawn, 1, do_sample=False)
            for score in group
        ]
        assert sum(score.well_formed for score in scores) >= 95
        assert 15 <= sum(score.correct for score in scores) <= 55

    def test_the_solutions_to_imitate_are_in_form_and_of_no_held_out_prompt(
        self, tmp_path: Path
    ) -> None:
        lines = [json.dumps(record) for record in islice(base_model.imperfect_solutions(), 1000)]
        (tmp_path / "solutions.jsonl").write_text("\n".join(lines))
        imitated = read_tasks(tmp_path / "solutions.jsonl")
        assert len(imitated) == 1000
        for task in imitated:
            assert measure.RESPONSE.fullmatch(str(task.solution))
            assert PROMPT.fullmatch(str(task.prompt))
            assert int(hashlib.sha256(str(task.prompt).encode()).hexdigest(), 16) % 10 != 0

    def test_weir_sft_finds_what_the_script_writes(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        recipe = load_sft_recipe(EXAMPLE / "sft.toml")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(base_model, "NUM_SOLUTIONS", 10)
        base_model.write_parts(base_model.FOLDER)
        assert len(read_tasks(Path(recipe.tasks.train))) == 10
        untrained = measure.AutoModelForCausalLM.from_pretrained(recipe.model.path)
        assert untrained.num_parameters() == 604_288
        assert len(measure.AutoTokenizer.from_pretrained(recipe.model.path)) == 96
