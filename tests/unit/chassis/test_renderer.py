"""A model's tokenizer and template render prompts; an excess of time or memory is named."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from protocol.messages import Task
from protocol.recipe import Model
from transformers import AutoTokenizer

from services.chassis import parity, prompts, renderer
from services.chassis.prompts import PromptError, UnknownToken
from services.chassis.renderer import LimitExceeded, PromptRenderer
from tests.architecture.project import ROOT
from tests.tables import table

pytestmark = pytest.mark.anyio

BASE_MODEL = ROOT / "examples/arithmetic/base-model"
TASK = Task(id="t", prompt="1+1=?")
LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
DOUBLING = (
    "{% set all = namespace(x='aaaaaaaaaaaaaaaa') %}"
    "{% for _ in range(30) %}{% set all.x = all.x ~ all.x %}{% endfor %}{{ all.x }}"
)
Made = Callable[..., Path]


@pytest.fixture
def make_model(tmp_path: Path) -> Made:
    """Makes the folder of a model with another template, or with changes of its tokenizer."""

    def make(template: str = "{{ messages[0].content }}", **changes: Any) -> Path:
        folder = shutil.copytree(BASE_MODEL, tmp_path / "model")
        (folder / "chat_template.jinja").write_text(template)
        tokenizer = json.loads((folder / "tokenizer.json").read_text())
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer | changes))
        if changes:
            (folder / "config.json").unlink()  # by which another class takes its own parts instead
        return folder

    return make


async def test_it_renders_what_the_tokenizer_would_in_this_process(make_model: Made) -> None:
    template = "{% for turn in messages %}{{ turn | tojson }}{{ '\n' }}{% endfor %}{{ effort }}"
    folder = make_model(template)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    turns = [{"role": "developer", "content": "1+1=é"}, {"role": "user", "content": "2"}]
    options = {"effort": "3"}
    whole = prompts.encode_prompt(TASK, None, tokenizer, options)
    digest = parity.digest_prompts([TASK], None, tokenizer, options)
    async with PromptRenderer(1) as prompt_renderer:
        await prompt_renderer.open(folder)
        assert await prompt_renderer.render(TASK, None, options) == whole
        assert await prompt_renderer.render(TASK, "{prompt}", {}) == tokenizer("1+1=?").input_ids
        ids = await prompt_renderer.chat(turns, options)
        assert ids == prompts.encode_chat(turns, tokenizer, options)
        assert await prompt_renderer.decode([ids, []]) == [tokenizer.decode(ids), ""]
        assert await prompt_renderer.digest([TASK], None, options) == digest
        vocabulary = await prompt_renderer.describe()
        assert (vocabulary.max_id, vocabulary.end_id) == (95, tokenizer.eos_token_id)


@table("""
    template                                                 | words
    {{ raise_exception('no') }}                              | refuses it: no
    {% macro more() %}{{ more() }}{% endmacro %}{{ more() }} | recursion
    {{ 1 / 0 }}                                              | division by zero
    {% for %}                                                | refuses it
    {{ messages.__class__.__mro__ }}                         | unsafe
    {{ cycler.__init__.__globals__.os.popen('id').read() }}  | refuses it
""")
async def test_a_template_that_refuses_a_task_costs_that_task_alone(
    make_model: Made, template: str, words: str
) -> None:
    async with PromptRenderer(1) as prompt_renderer:
        await prompt_renderer.open(make_model(template))
        with pytest.raises(PromptError, match=words):
            await prompt_renderer.render(TASK, None)
        assert await prompt_renderer.render(TASK, "{prompt}", {})


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (LOOP, "the model's chat template did not end within 1 s of CPU time; use another model"),
        ("{{ 'a' * 10**10 }}", "takes more than 1 GiB of memory"),
        (DOUBLING, "takes more than 1 GiB of memory|crashed|did not end"),
    ],
)
async def test_a_template_that_takes_too_much_is_named_and_the_next_prompt_is_rendered(
    make_model: Made, monkeypatch: pytest.MonkeyPatch, template: str, words: str
) -> None:
    monkeypatch.setattr(renderer, "TOKENIZER_CPU_S", 1.0 if template == LOOP else 60.0)
    folder = make_model(template)
    async with PromptRenderer(1) as prompt_renderer:
        await prompt_renderer.open(folder)
        shutil.rmtree(folder)  # a killed worker starts again without its folder
        with pytest.raises(LimitExceeded, match=words):
            await prompt_renderer.render(TASK, None)
        assert await prompt_renderer.render(TASK, "{prompt}", {})


SPLIT = {"type": "Split", "behavior": "Isolated", "invert": False}


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("(?:a|a){21}b|a", r"tokenizer did not end within 1 s of CPU time; use another model"),
        ("(?:a|a)+b", r"tokenizer crashed"),  # Oniguruma gives a match up, and Rust panics
    ],
)
async def test_a_tokenizer_that_takes_too_much_is_named_and_the_next_prompt_is_rendered(
    make_model: Made, monkeypatch: pytest.MonkeyPatch, pattern: str, words: str
) -> None:
    monkeypatch.setattr(renderer, "TOKENIZER_CPU_S", 1.0 if "21" in pattern else 60.0)
    async with PromptRenderer(1) as prompt_renderer:
        await prompt_renderer.open(
            make_model(pre_tokenizer={**SPLIT, "pattern": {"Regex": pattern}})
        )
        with pytest.raises(LimitExceeded, match=words):
            await prompt_renderer.encode("a" * 2000)
        assert await prompt_renderer.encode("1")


REPLACE = {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": ""}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"decoder": {"type": "Sequence", "decoders": [REPLACE]}}, "regular expression"),
        ({"model": {}}, "the model's tokenizer failed"),
    ],
)
async def test_a_tokenizer_that_cannot_be_used_is_refused_and_another_one_opened(
    make_model: Made, changes: dict[str, Any], words: str
) -> None:
    async with PromptRenderer(1) as prompt_renderer:
        with pytest.raises(PromptError, match=words):
            await prompt_renderer.open(make_model(**changes))
        await prompt_renderer.open(BASE_MODEL)
        assert await prompt_renderer.encode("1")


async def test_prompts_that_do_not_fit_or_cannot_be_made_are_counted_and_the_first_is_named(
    make_model: Made,
) -> None:
    template = "{% if messages[0].content == '?' %}{{ raise_exception('no') }}{% endif %}{{ 1 }}"
    folder = make_model(template + "{{ messages[0].content }}")
    tasks = [Task(id=text[:2], prompt=text) for text in ("1+1=?", "1+" * 40, "?")]
    model = Model(path="model", max_context=40)
    ended = model.model_copy(update={"prompt_template": "{prompt}<eos>"})
    for number, of_folder, of_model, words in (
        (1, folder, model, "None"),
        (3, folder, model, "2 of 3 prompts do not fit; .*: task '1\\+': its prompt has 8"),
        (1, folder, ended, ".*its prompt ends with '<eos>'"),
        (3, folder / "none", model, "the prompts were not measured: "),
    ):
        problems = await renderer.check_prompts(tasks[:number], of_folder, of_model, 8)
        assert re.match(words, str(problems))


async def test_a_token_without_a_row_is_in_no_prompt(make_model: Made) -> None:
    folder = make_model()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 95}))
    last = AutoTokenizer.from_pretrained(folder).convert_ids_to_tokens(95)
    async with PromptRenderer(1) as prompt_renderer:
        await prompt_renderer.open(folder)
        assert (await prompt_renderer.describe()).max_id == 94
        assert await prompt_renderer.render(TASK, None)
        with pytest.raises(UnknownToken, match=r"id 95, .* but the model has 95 rows"):
            await prompt_renderer.render(Task(id="t", prompt=f"1+1={last}"), None)
