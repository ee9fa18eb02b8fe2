"""`weir sft`: solutions become samples as rollouts would have sampled them; the rest is refused."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from protocol.messages import Task
from protocol.recipe import Model
from transformers import AutoTokenizer

from services.chassis.prompts import encode_prompt
from services.learner.sft.__main__ import main
from services.learner.sft.run import FolderTaken, batches, build_samples, partial_folder
from services.learner.training.batching import count_totals
from services.learner.training.samples import Sample
from tests.architecture.project import ROOT
from tests.inline_prompts import InlinePrompts

BASE_MODEL = ROOT / "examples/arithmetic/base-model"
MODEL = Model(
    path=str(BASE_MODEL),
    prompt_template="{prompt}",
    max_context=32,
)
TASK = {"id": "a", "prompt": "10+1=?", "answer": "11", "solution": "10+1=11;"}


def samples(*tasks: dict[str, Any]) -> list[Sample]:
    prompts = InlinePrompts(AutoTokenizer.from_pretrained(BASE_MODEL))
    read = [Task.model_validate(task) for task in tasks]
    return asyncio.run(build_samples(read, MODEL, prompts))


def test_a_solution_is_learned_after_the_prompt_of_a_rollout_and_up_to_its_end() -> None:
    tokenizer = AutoTokenizer.from_pretrained(BASE_MODEL)
    (sample,) = samples(TASK)
    prompt = encode_prompt(Task.model_validate(TASK), "{prompt}", tokenizer)
    assert sample.prompt_ids.tolist() == prompt
    assert tokenizer.decode(sample.token_ids) == "10+1=11;<eos>"
    assert count_totals([sample]).positive_tokens == len(sample.token_ids)


def test_an_epoch_has_every_solution_once_and_the_next_another_order() -> None:
    learned = samples(*[TASK | {"id": f"{n}", "solution": "1" * n} for n in range(1, 11)])
    orders: list[list[int]] = []
    for epoch in (0, 1, 0):
        parts = list(batches(learned, 4, (0, epoch)))
        assert [len(part) for part in parts] == [4, 4, 2]
        orders.append([len(sample.token_ids) for part in parts for sample in part])
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(2, 12))
    assert orders[0] == orders[2] != orders[1]


def write_recipe(
    folder: Path,
    tasks: list[dict[str, Any]],
    extra: str = "",
) -> list[str]:
    """A recipe over these tasks; returns the arguments of the verb."""
    (folder / "tasks.jsonl").write_text("".join(f"{json.dumps(task)}\n" for task in tasks))
    (folder / "recipe.toml").write_text(
        f'[model]\npath = "examples/arithmetic/base-model"\nprompt_template = "{{prompt}}"\n'
        f'max_context = 32\n[tasks]\ntrain = "{folder / "tasks.jsonl"}"\n{extra}'
    )
    return [str(folder / "recipe.toml"), str(folder / "model")]


@pytest.mark.parametrize(
    ("task", "extra", "named"),
    [
        pytest.param(
            {"solution": None},
            "",
            ["task 'b'", "solution"],
            id="none",
        ),
        pytest.param(
            {"solution": "1" * 40}, "", ["task 'b'", "48", "model.max_context 32"], id="too long"
        ),
        pytest.param(
            {"id": "a"},
            "",
            ["tasks.train:\nline 2"],
            id="tasks",
        ),
        pytest.param({}, "held_out = 'no.jsonl'", ["tasks.held_out:\nno.jsonl"], id="no file"),
        pytest.param({}, "[model.lora]\nmerge = true", ["model.lora.merge"], id="idle setting"),
        pytest.param({}, "[model.lora]\ntargets = ['v']", ["model.lora.targets"], id="no layer"),
        pytest.param(
            {}, "[training]\nsequence_parallel = 2", ["sequence_parallel = 2"], id="too few ranks"
        ),
        pytest.param({}, "[rollout]", ["rollout: "], id="recipe of a job"),
    ],
)
def test_what_cannot_be_learned_is_refused_before_anything_is_loaded(
    task: dict[str, Any],
    extra: str,
    named: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(ROOT)
    assert main(write_recipe(tmp_path, [TASK, TASK | {"id": "b"} | task], extra)) == 2
    printed = capsys.readouterr().err
    assert [part for part in named if part not in printed] == []
    assert not list(tmp_path.glob("*model*"))


def test_a_refusal_is_said_by_one_rank_alone_and_a_model_is_not_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = write_recipe(tmp_path, [TASK])
    (tmp_path / "model").mkdir()
    assert main(arguments) == 2
    assert arguments[1] in capsys.readouterr().err
    monkeypatch.setenv("RANK", "1")
    assert main(arguments) == 2
    assert capsys.readouterr().err == ""


def test_a_model_that_another_process_writes_is_let_alone(tmp_path: Path) -> None:
    target = tmp_path / "model"
    killed = tmp_path / ".model.partial/model"
    killed.mkdir(parents=True)
    (killed / "old.safetensors").touch()
    with partial_folder(target) as folder:
        assert not list(folder.iterdir())
        with pytest.raises(FolderTaken, match="model"):
            partial_folder(target).__enter__()
        with partial_folder(tmp_path / "other"):
            folder.rename(target)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    with pytest.raises(FolderTaken):
        partial_folder(target).__enter__()
