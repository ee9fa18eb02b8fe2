"""Random bodies: one that is right, with some of its values made hostile, as text or as a form."""

from __future__ import annotations

import gzip
import json
from random import Random
from typing import Any

from services.gateway.middleware.limits import MAX_JSON_BYTES
from tests.contract.gateway.stack import GOOD_LINE, RECIPE, changed

Headers = dict[str, str]
_DEPTHS = (1, 60, 65, 195, 205, 950, 30_000)
_TEXTS = (
    *("", "\0", "a\0b", "\ud800", "x\udc00", "\N{GRINNING FACE}" * 100, "\u202e", "é" * 200),
    *("a" * 256, "b" * 5000, "c" * 100_001, "a/" * 3000, "../..", "/", "~", "%00", "auto", "nan"),
    *("{{sample.output_text}}", "{{item.\ud800}}", "{{" * 50, "{prompt}{0}", "a\r\nb", "my.oracle"),
    *("9**9**9", "(" * 300 + "a" + ")" * 300, "a/0", "1e400*a", "x" * 64, "tiny/../tiny"),
)
_NUMBERS = ("NaN", "-Infinity", "1e999", "1e308", "-0.0", "0", "-1", "1e-400", "1.5", "2147483648")
_PLAIN = (
    "true",
    "null",
    "{}",
    "[]",
    '""',
    '[""]',
    '{"":{}}',
    "[[[]]]",
    '{"a":1,"a":2}',
    '"\\ud83d"',
)
_GRADERS: tuple[Any, ...] = (
    {"type": "math_answer"},
    {
        "type": "string_check",
        "input": "{{sample.output_text}}",
        "reference": "1",
        "operation": "eq",
    },
    {"type": "text_similarity", "input": "a", "reference": "b", "evaluation_metric": "bleu"},
    {
        "type": "score_model",
        "model": "judge",
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "good?"}]}],
        "range": [0, 1],
        "sampling_params": {"seed": 1, "temperature": 0.5, "max_completions_tokens": 100},
    },
    {
        "type": "multi",
        "graders": {"a": {"type": "math_answer"}, "b": {"type": "equation_steps"}},
        "calculate_output": "0.5 * a + 0.5 * b",
    },
)
_PYTHON = {"type": "python", "source": "def grade(sample, item):\n    return len(item['answer'])"}
_ANSWERS = (r"\boxed{\frac{1}{2}}", "1 + 1 = 2\n2 * 3 = 6", '{"value": 4}', r"x^2 = \sqrt{2", "")
_CHECK = {"verifier": "my.oracle", "name": "own", "settings": {"a": [1, {"b": "c"}]}}
UPLOAD = {"filename": "t.jsonl", "purpose": "fine-tune", "bytes": 10, "mime_type": "text/jsonl"}
_TOML = 'name = "x"\n[model]\npath = "tiny"\n[training]\nsteps = 3\n'


class _Raw(str):
    """A text of JSON that is to stand as it is."""


def job(draw: Random, file_id: str) -> Any:
    """A body for POST /v1/fine_tuning/jobs."""
    recipe = changed(RECIPE, "reward.outcome", [_CHECK]) if draw.random() < 0.5 else RECIPE
    body: dict[str, Any] = {"model": "tiny", "training_file": file_id, "recipe": recipe, "seed": 1}
    if draw.random() < 0.5:
        hyperparameters = {"batch_size": 4, "n_epochs": 1, "eval_samples": 2}
        settings = {"grader": draw.choice(_GRADERS), "hyperparameters": hyperparameters}
        body |= {"recipe": RECIPE, "method": {"type": "reinforcement", "reinforcement": settings}}
    if draw.random() < 0.5:
        body |= {"metadata": {"team": "a"}, "suffix": "b", "validation_file": file_id}
    return body


def grader(draw: Random) -> Any:
    """A body for POST /v1/fine_tuning/alpha/graders/validate."""
    return {"grader": draw.choice((*_GRADERS, _PYTHON))}


def trial(draw: Random) -> Any:
    """A body for POST /v1/fine_tuning/alpha/graders/run."""
    item = {"answer": draw.choice(_ANSWERS), "b": [1, {"c": "d"}]}
    return {**grader(draw), "model_sample": draw.choice(_ANSWERS), "item": item}


def recipe_text(draw: Random) -> Any:
    """A body for POST /v1/page/recipe."""
    if draw.random() < 0.3:
        return {"text": _TOML + f"x = {_hostile(draw)}\n"}
    path = {"model": {**RECIPE["model"], "path": "tiny"}, "tasks": {"train": "x.jsonl"}}
    return {"text": _written(_mutated(RECIPE | path, draw)).encode(errors="replace").decode()}


def form(draw: Random, field: str) -> tuple[bytes, Headers]:
    """A body of multipart/form-data, whose file is a field of that name."""
    task = {**json.loads(GOOD_LINE), "metadata": {"level": [1, "x"]}}
    lines = [_bytes(_mutated(task, draw)) for _ in range(draw.choice((1, 1, 3)))]
    name = draw.choice(("t.jsonl", *_TEXTS)).replace("\r\n", "").encode(errors="replace")
    named = draw.choice((field.encode(),) * 3 + (b"x" * 5000, b"\xff"))
    purpose = draw.choice((b"fine-tune", b"fine-tune", b"fine-tune", b"\0", b"x" * 2**20))
    parts = [
        b'Content-Disposition: form-data; name="purpose"\r\n\r\n' + purpose,
        b'Content-Disposition: form-data; name="%b"; filename="%b"\r\n\r\n' % (named, name)
        + _damaged(b"\n".join(lines), draw),
    ]
    body = b"".join(b"--z\r\n%b\r\n" % part for part in parts) + b"--z--\r\n"
    charset = draw.choice(("", "", "; charset=utf-7", "; charset=undefined", "; charset=idna"))
    return body, {"Content-Type": f"multipart/form-data; boundary=z{charset}"}


def text(body: Any, draw: Random) -> tuple[bytes, Headers]:
    """A body of JSON with some values made hostile, or with damage to its bytes."""
    written = _bytes(_mutated(body, draw))
    if draw.random() < 0.01:
        written += b" " * MAX_JSON_BYTES
    kind = draw.choice(("application/json",) * 15 + ("text/plain", "x", "multipart/form-data"))
    return _damaged(written, draw), {"Content-Type": kind}


def retry(draw: Random) -> Headers:
    """What a client may say of a repeat."""
    return {
        **({"Idempotency-Key": draw.choice(("a", "b", "k" * 300))} if draw.random() < 0.1 else {}),
        **(
            {"x-stainless-retry-count": draw.choice(("1", "-1", "x", "9" * 400))}
            if draw.random() < 0.1
            else {}
        ),
    }


def _mutated(body: Any, draw: Random) -> Any:
    body = json.loads(json.dumps(body))
    for _ in range(draw.choice((0, 1, 1, 1, 2, 3))):
        places = list(_places(body))
        if not places:
            return _hostile(draw)
        holder, key = draw.choice(places)
        act = draw.random()
        if act < 0.7:
            holder[key] = _hostile(draw)
        elif isinstance(holder, dict) and act < 0.85:
            holder[_Raw(_text(draw))] = _hostile(draw)
        else:
            del holder[key]
    return body


def _places(body: Any) -> Any:
    for key, value in list(body.items() if isinstance(body, dict) else enumerate(body)):
        yield body, key
        if isinstance(value, dict | list):
            yield from _places(value)


def _hostile(draw: Random) -> _Raw:
    depth = draw.choice(_DEPTHS)
    return _Raw(
        draw.choice(
            (
                lambda: _text(draw),
                lambda: _text(draw),
                lambda: draw.choice(_NUMBERS),
                lambda: draw.choice(("1", "-1")) + "0" * draw.choice((3, 18, 19, 400, 5000)),
                lambda: draw.choice(_PLAIN),
                lambda: "[" * depth + "]" * depth,
                lambda: '{"a":' * depth + "1" + "}" * depth,
                lambda: "[" + "[]," * draw.choice((5, 100_000)) + "1]",
                lambda: json.dumps({str(n): n for n in range(draw.choice((17, 5000)))}),
            )
        )()
    )


def _text(draw: Random) -> str:
    return json.dumps(draw.choice(_TEXTS), ensure_ascii=draw.random() < 0.7)


def _written(value: Any) -> str:
    if isinstance(value, _Raw):
        return value
    if isinstance(value, dict):
        items = (
            f"{key if isinstance(key, _Raw) else json.dumps(key)}:{_written(item)}"
            for key, item in value.items()
        )
        return "{" + ",".join(items) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_written, value)) + "]"
    return json.dumps(value)


def _bytes(value: Any) -> bytes:
    return _written(value).encode(errors="surrogatepass")


def _damaged(body: bytes, draw: Random) -> bytes:
    if draw.random() > 0.06:
        return body
    cut = draw.randrange(len(body) + 1)
    return draw.choice(
        (
            body[:cut],
            body[:cut] + draw.randbytes(4) + body[cut:],
            b"\xef\xbb\xbf" + body,
            body.decode(errors="replace").encode("utf-16"),
            body.decode(errors="replace").encode("utf-32"),
            gzip.compress(body),
            b"",
        )
    )
