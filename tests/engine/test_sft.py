"""`weir sft` learns what plain torch would, on any number of ranks, and writes a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

from tests.engine.conftest import write_model
from tests.engine.outputs import TOLERANCE, largest_gap
from tests.engine.ranks import Ranks
from tests.engine.trouble import warm_start

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]
EPOCHS = 3
SOLUTIONS = {f"{n}+1=": f"{n + 1} is the answer"[: 3 + 2 * n] for n in range(1, 9)}
HELD_OUT = {"9+1=": "10"}
RECIPE = """
[model]
path = "{start}"
dtype = "float32"
prompt_template = "{{prompt}}"
max_context = 512
[tasks]
train = "{folder}/train.jsonl"
held_out = "{folder}/held_out.jsonl"
[training]
epochs = 3
micro_batch_tokens = 60
logprob_chunk_tokens = 20
sequence_parallel = {num_ranks}
[optimizer]
learning_rate = 1e-3
weight_decay = 0.01
warmup_steps = 1
zero_stage = {zero_stage}
"""


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That of the other engines, with weights as small as an untrained model's."""
    folder = write_model(tmp_path_factory.mktemp("start") / "model", seed=3)
    Qwen2ForCausalLM(Qwen2Config.from_pretrained(folder)).save_pretrained(folder)
    return folder


def sft(
    ranks: Ranks,
    folder: Path,
    start: Path,
    *,
    num_ranks: int = 1,
    zero_stage: int = 1,
    more: str = "",
) -> tuple[int, str]:
    """Run the verb in a folder, into its folder `out`; returns its status and what it says."""
    folder.mkdir(exist_ok=True)
    for name, solutions in (("train", SOLUTIONS), ("held_out", HELD_OUT)):
        lines = [
            json.dumps(
                {
                    "id": prompt,
                    "prompt": prompt,
                    "answer": "-",
                    "solution": solution,
                }
            )
            for prompt, solution in solutions.items()
        ]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    recipe = RECIPE.format(
        start=start,
        folder=folder,
        num_ranks=num_ranks,
        zero_stage=zero_stage,
    )
    (folder / "recipe.toml").write_text(recipe + more)
    status = ranks.run(
        warm_start,
        ranks=num_ranks,
        recipe=folder / "recipe.toml",
        out=folder / "out",
        models=start.parent,
    )
    return status, ranks.output


def compute_loss(model: Any, tokenizer: Any, solutions: dict[str, str]) -> torch.Tensor:
    """The mean NLL per token of solutions and their ends, one sequence at a time."""
    losses = []
    for prompt, solution in solutions.items():
        question, whole = tokenizer(prompt).input_ids, tokenizer(prompt + solution).input_ids
        ids = torch.tensor([[*whole, tokenizer.eos_token_id]])
        logprobs = model(input_ids=ids).logits[0, :-1].log_softmax(-1)
        targets = ids[0, 1:]
        losses.append(-logprobs[range(len(targets)), targets][len(question) - 1 :])
    return torch.cat(losses).mean()


def test_it_learns_what_plain_torch_does_and_says_how_well(
    ranks: Ranks, start: Path, tmp_path: Path
) -> None:
    model = AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(start)
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=0,
        weight_decay=0.01,
    )
    held_out, losses = [], []
    for update in range(EPOCHS):
        optimizer.zero_grad()
        loss = compute_loss(model, tokenizer, SOLUTIONS)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.param_groups[0]["lr"] = 1e-3 * (1.0, 1.0, 0.5)[update]
        optimizer.step()
        losses.append(loss.item())
        held_out.append(compute_loss(model, tokenizer, HELD_OUT).item())

    status, output = sft(ranks, tmp_path, start)

    assert status == 0, output
    assert "OVERFLOW" not in output  # the rehearsal is quiet
    learned = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    assert largest_gap(learned.state_dict(), model.state_dict()) <= TOLERANCE
    assert AutoTokenizer.from_pretrained(tmp_path / "out").get_vocab() == tokenizer.get_vocab()
    for epoch, loss in enumerate(held_out, start=1):
        assert f"epoch {epoch}/3: held-out loss {loss:.4f}" in output
    assert f"update 3/3: loss {sum(losses) / 3:.4f}, " in output

    status, output = sft(
        ranks,
        tmp_path / "two",
        start,
        num_ranks=2,
        zero_stage=3,
    )
    assert status == 0, output
    assert output.count("held-out loss") == EPOCHS
    shared = AutoModelForCausalLM.from_pretrained(tmp_path / "two" / "out", dtype=torch.float32)
    assert largest_gap(shared.state_dict(), model.state_dict()) <= TOLERANCE


def test_what_an_adapter_has_learned_is_in_the_model(
    ranks: Ranks, start: Path, tmp_path: Path
) -> None:
    status, output = sft(ranks, tmp_path, start, num_ranks=2, more="[model.lora]\nrank = 4\n")
    assert status == 0, output
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    losses = [
        compute_loss(AutoModelForCausalLM.from_pretrained(model), tokenizer, HELD_OUT).item()
        for model in (start, tmp_path / "out")
    ]
    assert f"epoch 3/3: held-out loss {losses[1]:.4f}" in output
    assert abs(losses[1] - losses[0]) > 0.001


def test_a_model_that_cannot_learn_is_not_written(
    ranks: Ranks, start: Path, tmp_path: Path
) -> None:
    model = AutoModelForCausalLM.from_pretrained(start)
    torch.nn.init.constant_(next(model.parameters()), torch.nan)
    model.save_pretrained(tmp_path / "broken")
    AutoTokenizer.from_pretrained(start).save_pretrained(tmp_path / "broken")
    status, output = sft(ranks, tmp_path, tmp_path / "broken")
    assert status == 1
    assert "update 3/3: loss nan" in output
    assert "3 not made: not finite" in output
    assert "weir: no update had a finite loss and gradient" in output
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / ".out.partial").exists()
