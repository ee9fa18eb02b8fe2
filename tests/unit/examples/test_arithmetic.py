"""The arithmetic example: valid tasks, an honest split, a base model that is the recorded one."""

import hashlib
import json
import re
from itertools import islice
from pathlib import Path

import pytest
import torch
from protocol.tasks import read_tasks

from examples.arithmetic import base_model, measure, tasks
from services.learner.sft.recipe import load_sft_recipe

EXAMPLE = Path(tasks.__file__).parent
SHIPPED_MODEL = EXAMPLE / "base-model"
# With other weights all that was measured with these, in documents too, is to be measured anew.
SHIPPED_WEIGHTS_SHA256 = "7db468bb376fddc1a22446cf8593c5531b6424db327fe938a8482111fa162f67"
PROMPT = re.compile(r"(\d\d)([+-][1-9])([+-][1-9])([+-][1-9])=\?")
TASK = tasks.ArithmeticTask(47, (8, -6, 7))


def is_of_the_held_out(prompt: str) -> bool:
    return int(hashlib.sha256(prompt.encode()).hexdigest(), 16) % 10 == 0


def test_the_committed_tasks_are_valid_and_those_held_out_are_others(tmp_path: Path) -> None:
    tasks.write_task_files(tmp_path)
    seen: list[str] = []
    for name, number in (("train.jsonl", 4_000), ("held_out.jsonl", 512)):
        assert (tmp_path / name).read_bytes() == (EXAMPLE / name).read_bytes()
        records = [json.loads(line) for line in (EXAMPLE / name).read_text().splitlines()]
        assert len(records) == number
        for record in records:
            match = PROMPT.fullmatch(record["prompt"])
            assert match is not None
            total, equations = int(match[1]), ""
            for step in match.groups()[1:]:
                equations += f"{total}{step}="
                total += int(step)
                equations += f"{total};"
                assert 0 <= total <= 99
            assert record["answer"] == str(total)
            assert record["solution"] == f"{equations}\\boxed{{{total}}}"
            assert is_of_the_held_out(record["prompt"]) == (name == "held_out.jsonl")
        seen += [record["id"] for record in records]
    assert len(set(seen)) == 4_512


@pytest.mark.parametrize(
    ("text", "well_formed", "correct", "process"),
    [
        (r"47+8=55;55-6=49;49+7=56;\boxed{56}", True, True, 1),
        (r"47+8=45;55-6=49;49+7=56;\boxed{56}", True, True, 2 / 3),
        (r"47+8-6=49;49+7=56;\boxed{56}", True, True, 2 / 3),
        (r"47+8=55;55-6=49;49+7=46;\boxed{46}", True, False, 2 / 3),
        (r"47+8=55;;\boxed{56}", False, False, 1 / 3),
    ],
)
def test_a_response_is_scored(text: str, well_formed: bool, correct: bool, process: float) -> None:
    score = measure.score_response(TASK, text)
    assert (score.well_formed, score.correct) == (well_formed, correct)
    assert score.process == pytest.approx(process)


def test_the_tokenizer_is_the_one_that_the_script_makes_and_reads_each_character() -> None:
    tokenizer = measure.AutoTokenizer.from_pretrained(SHIPPED_MODEL)
    shipped = json.loads((SHIPPED_MODEL / "tokenizer.json").read_text())
    assert json.loads(base_model.make_tokenizer().backend_tokenizer.to_str()) == shipped
    text = r"47+8-6+7=?47+8=55; \boxed{56} and so on"
    token_ids = tokenizer(text)["input_ids"]
    assert len(token_ids) == 1 + len(text)
    assert tokenizer.decode(token_ids, skip_special_tokens=True) == text
    special = (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id)
    assert special == (0, 1, 2)
    assert len(tokenizer) == base_model.VOCABULARY_SIZE == 96


def test_the_model_is_the_recorded_one_answers_in_form_and_is_often_wrong() -> None:
    weights = (SHIPPED_MODEL / "model.safetensors").read_bytes()
    assert hashlib.sha256(weights).hexdigest() == SHIPPED_WEIGHTS_SHA256
    model = measure.AutoModelForCausalLM.from_pretrained(SHIPPED_MODEL, dtype=torch.float32)
    tokenizer = measure.AutoTokenizer.from_pretrained(SHIPPED_MODEL)
    assert model.num_parameters() == 604_288
    drawn = tasks.distinct_tasks(40, held_out=True)
    groups = measure.score_groups(model, tokenizer, drawn, 1, do_sample=False)
    scores = [score for group in groups for score in group]
    assert sum(score.well_formed for score in scores) >= 38
    assert 6 <= sum(score.correct for score in scores) <= 22


def test_weir_sft_finds_what_the_script_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = load_sft_recipe(EXAMPLE / "sft.toml")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(base_model, "NUM_SOLUTIONS", 10)
    base_model.write_parts(base_model.FOLDER)
    assert len(read_tasks(Path(recipe.tasks.train))) == 10
    untrained = measure.AutoModelForCausalLM.from_pretrained(recipe.model.path)
    assert untrained.num_parameters() == 604_288
    assert len(measure.AutoTokenizer.from_pretrained(recipe.model.path)) == 96


def test_the_solutions_to_imitate_are_in_form_and_of_no_held_out_prompt(tmp_path: Path) -> None:
    lines = [json.dumps(record) for record in islice(base_model.imperfect_solutions(), 1000)]
    (tmp_path / "solutions.jsonl").write_text("\n".join(lines))
    imitated = read_tasks(tmp_path / "solutions.jsonl")
    right = sum(str(task.solution).endswith(f"boxed{{{task.answer}}}") for task in imitated)
    assert right / 1000 == pytest.approx(0.48, abs=0.04)  # as the careless author's habits give
    for task in imitated:
        assert measure.RESPONSE.fullmatch(str(task.solution))
        assert PROMPT.fullmatch(str(task.prompt))
        assert not is_of_the_held_out(str(task.prompt))
