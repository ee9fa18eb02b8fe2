"""The tokenizer and the chat template of one model, in a process that may be killed.

`PromptRenderer` calls these functions in a confined pool. A tokenizer's regular expressions and a
template are untrusted programs, so no other process may import this module.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from protocol.messages import Task
from protocol.model_folder import has_config, read_config, vocabulary_size

from services.chassis import parity, prompts

_TORCH = ("torch", "torchvision", "torchaudio")
_LAZY_IMPORTS = ("encodings.unicode_escape", "encodings.idna", "jinja2.debug", "jinja2.sandbox")
# Uses everything that jinja2 imports lazily.
_SAMPLE_TEMPLATE = (
    "{% macro show(turn) %}{{ turn | tojson }}{% endmacro %}{{ strftime_now('%Y') }}"
    "{% for turn in messages %}{{ show(turn) ~ 'é\n' | trim }}{% endfor %}{{ raise_exception('') }}"
)

_TEXT = "1 + 2 =\n\n3: é 鸡 🐔"

_tokenizer: Any = None


def import_libraries() -> None:
    """Import everything now, since a confined worker can read no file."""
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    find_spec = importlib.util.find_spec

    def find_no_torch(name: str, package: str | None = None) -> Any:
        return None if name.partition(".")[0] in _TORCH else find_spec(name, package)

    importlib.util.find_spec = find_no_torch  # it takes 340 MiB and two seconds
    for name in _LAZY_IMPORTS:
        importlib.import_module(name)
    assert importlib.import_module("transformers").AutoTokenizer


def load(folder: str) -> None:
    """Load a model's tokenizer, and use it once for further imports.

    Raises:
        ValueError: if its decoder has a regular expression, since engines decode in their own
            process; or if it loses text that the folder's file keeps.
    """
    global _tokenizer
    loader = importlib.import_module("transformers").AutoTokenizer
    _tokenizer = loader.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    backend = getattr(_tokenizer, "backend_tokenizer", None)
    if backend is not None and '"Regex"' in json.dumps(json.loads(backend.to_str())["decoder"]):
        raise ValueError(
            "the decoder in tokenizer.json has a regular expression, which may never end"
        )
    _check_text(Path(folder, "tokenizer.json"))
    _tokenizer.num_rows = _num_rows(Path(folder))
    _tokenizer("a")
    with suppress(TemplateError):
        turns = [{"role": "user", "content": ""}]
        _tokenizer.apply_chat_template(turns, chat_template=_SAMPLE_TEMPLATE)


def _check_text(file: Path) -> None:
    """Raise `ValueError` if transformers replaces parts of the file by its own and loses text."""
    ids = _tokenizer(_TEXT, add_special_tokens=False).input_ids
    if not file.is_file() or _keeps_text(_tokenizer, ids):
        return
    from_file = importlib.import_module("tokenizers").Tokenizer.from_file(str(file))
    if _keeps_text(from_file, from_file.encode(_TEXT, add_special_tokens=False).ids):
        raise ValueError(
            f"transformers reads tokenizer.json as {type(_tokenizer).__name__}, which loses text; "
            'set tokenizer_class to "PreTrainedTokenizerFast" in tokenizer_config.json'
        )


def _keeps_text(tokenizer: Any, ids: list[int]) -> bool:
    return tokenizer.decode(ids).strip() == _TEXT


def render(
    task: Mapping[str, Any], template: str | None, options: Mapping[str, Any] | None
) -> list[int]:
    return _check_ids(
        prompts.encode_prompt(Task.model_validate(task), template, _tokenizer, options)
    )


def find_problems(
    tasks: Sequence[Mapping[str, Any]],
    template: str | None,
    options: Mapping[str, Any] | None,
    max_context: int,
    max_tokens: int,
) -> list[str]:
    """Return the problems of prompts that are refused, too long, or end with the end token."""
    problems: list[str] = []
    for fields in tasks:
        try:
            ids = render(fields, template, options)
            prompts.check_length(Task.model_validate(fields), ids, max_context, max_tokens)
        except prompts.PromptError as error:
            problems.append(str(error))
        else:
            if ids[-1:] == [_tokenizer.eos_token_id]:
                problems.append(
                    f"task {fields['id']!r}: its prompt ends with {_tokenizer.eos_token!r}; have "
                    "the template begin the assistant's turn, or set model.prompt_template"
                )
    return problems


def render_chat(
    turns: Sequence[Mapping[str, Any]],
    options: Mapping[str, Any],
    tools: Sequence[Mapping[str, Any]],
    prefix: tuple[Sequence[int], int] | None,
) -> list[int]:
    chat = (turns, _tokenizer, options, tools)
    extended = prefix and prompts.extend_chat(*prefix, *chat)
    return _check_ids(extended or prompts.encode_chat(*chat))


def encode(text: str, options: Mapping[str, Any]) -> list[int]:
    return _check_ids(list(_tokenizer(text, **options).input_ids))


def decode(sequences: Sequence[list[int]]) -> list[str]:
    return [_tokenizer.decode(ids, skip_special_tokens=True) for ids in sequences]


def digest_prompts(
    tasks: Sequence[Mapping[str, Any]], template: str | None, options: Mapping[str, Any]
) -> str:
    return parity.digest_prompts(map(Task.model_validate, tasks), template, _tokenizer, options)


def describe() -> tuple[str, int, int | None]:
    """Return the fields of `renderer.Vocabulary`."""
    vocabulary = _tokenizer.get_vocab()
    digest = blake2b(json.dumps(sorted(vocabulary.items())).encode(), digest_size=16).hexdigest()
    max_id = min(max(vocabulary.values()), _rows() - 1)
    return digest, max_id, _tokenizer.eos_token_id


def _num_rows(folder: Path) -> int:
    """Return the number of token ids of a model; some tokenizers have more."""
    size = vocabulary_size(read_config(folder)) if has_config(folder) else None
    return size or sys.maxsize


def _rows() -> int:
    return getattr(_tokenizer, "num_rows", sys.maxsize)


def _check_ids(ids: list[int]) -> list[int]:
    largest = max(ids, default=0)
    if largest < _rows():
        return ids
    token = _tokenizer.convert_ids_to_tokens(largest)
    raise prompts.UnknownToken(
        f"the tokenizer has id {largest}, {token!r}, but the model has {_rows()} rows; leave that "
        "token out of tasks and template, or resize the model"
    )
