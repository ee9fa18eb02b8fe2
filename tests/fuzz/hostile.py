"""Random bodies: one that is right, with some of its values made hostile, as JSON or as a form."""

from __future__ import annotations

import gzip
import json
from random import Random
from typing import Any

from tests.contract.gateway.stack import GOOD_LINE, RECIPE, changed

Headers = dict[str, str]
_TEXTS = (
    *("", "\0", "a\0b", "\ud800", "x\udc00", "\N{GRINNING FACE}" * 100, "\u202e", "é" * 200),
    *("b" * 5000, "c" * 100_001, "a/" * 3000, "../..", "/", "%00", "auto", "nan", "a\r\nb"),
    *("{{sample.output_text}}", "{{item.\ud800}}", "{{" * 50, "{prompt}{0}", "my.oracle"),
    *("9**9**9", "(" * 300 + "a" + ")" * 300, "a/0", "1e400*a", "tiny/../tiny"),
)
_LITERALS = (
    *("NaN", "-Infinity", "1e999", "1e308", "-0.0", "-1", "1e-400", "1.5", "2147483648"),
    *("1" + "0" * 400, "true", "null", "{}", '[""]', '{"":{}}', "[[[]]]", '{"a":1,"a":2}'),
    *("[" * 65 + "]" * 65, '{"a":' * 205 + "1" + "}" * 205, "[" + "[]," * 100_000 + "1]"),
)
_GRADERS: tuple[Any, ...] = (
    {"type": "math_answer"},
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
    {"type": "python", "source": "def grade(sample, item):\n    return len(item['answer'])"},
)
_ANSWERS = (r"\boxed{\frac{1}{2}}", "1 + 1 = 2\n2 * 3 = 6", '{"value": 4}', r"x^2 = \sqrt{2", "")
_CHECK = {"verifier": "my.oracle", "name": "own", "settings": {"a": [1, {"b": "c"}]}}
UPLOAD = {"filename": "t.jsonl", "purpose": "fine-tune", "bytes": 10, "mime_type": "text/jsonl"}


class _Raw(str):
    """A text of JSON that is to stand as it is."""


def request(route: str, draw: Random, file_id: str) -> tuple[bytes, Headers]:
    """A body for a route, with its headers."""
    if route == "/v1/files" or route.endswith("/parts"):
        return _form(draw, "file" if route == "/v1/files" else "data")
    grader = {"grader": draw.choice(_GRADERS)}
    if route == "/v1/fine_tuning/jobs":
        headers = {"Idempotency-Key": draw.choice(("a", "b", "k" * 300))}
        body, kind = _json(_job(draw, file_id), draw)
        return body, kind | (headers if draw.random() < 0.1 else {})
    if route == "/v1/uploads":
        return _json(UPLOAD, draw)
    if route.endswith("/graders/run"):
        item = {"answer": draw.choice(_ANSWERS), "b": [1, {"c": "d"}]}
        return _json(grader | {"model_sample": draw.choice(_ANSWERS), "item": item}, draw)
    if "/graders/" in route:
        return _json(grader, draw)
    if route == "/v1/page/recipe":
        recipe = RECIPE | {"model": {"path": "tiny"}, "tasks": {"train": "x.jsonl"}}
        text = _written(_mutated(recipe, draw)).encode(errors="replace").decode()
        toml = f'name = "x"\n[model]\npath = "tiny"\nx = {draw.choice(_LITERALS)}\n'
        return _json({"text": draw.choice((text, toml))}, draw)
    return _json({"a": [1, {"b": "c"}]}, draw)


def _job(draw: Random, file_id: str) -> Any:
    recipe = changed(RECIPE, "reward.outcome", [_CHECK]) if draw.random() < 0.5 else RECIPE
    body: dict[str, Any] = {"model": "tiny", "training_file": file_id, "recipe": recipe, "seed": 1}
    if draw.random() < 0.5:
        hyperparameters = {"batch_size": 4, "n_epochs": 1, "eval_samples": 2}
        settings = {"grader": draw.choice(_GRADERS), "hyperparameters": hyperparameters}
        body |= {"recipe": RECIPE, "method": {"type": "reinforcement", "reinforcement": settings}}
    if draw.random() < 0.5:
        body |= {"metadata": {"team": "a"}, "suffix": "b", "validation_file": file_id}
    return body


def _form(draw: Random, field: str) -> tuple[bytes, Headers]:
    task = {**json.loads(GOOD_LINE), "metadata": {"level": [1, "x"]}}
    lines = [_bytes(_mutated(task, draw)) for _ in range(draw.choice((1, 3)))]
    name = draw.choice(("t.jsonl", *_TEXTS)).replace("\r\n", "").encode(errors="replace")
    named = draw.choice((field.encode(),) * 3 + (b"x" * 5000, b"\xff"))
    purpose = draw.choice((b"fine-tune",) * 3 + (b"\0", b"x" * 2**20))
    parts = [
        b'Content-Disposition: form-data; name="purpose"\r\n\r\n' + purpose,
        b'Content-Disposition: form-data; name="%b"; filename="%b"\r\n\r\n' % (named, name)
        + _damaged(b"\n".join(lines), draw),
    ]
    body = b"".join(b"--z\r\n%b\r\n" % part for part in parts) + b"--z--\r\n"
    charset = draw.choice(("", "; charset=utf-7", "; charset=undefined"))
    return body, {"Content-Type": f"multipart/form-data; boundary=z{charset}"}


def _json(body: Any, draw: Random) -> tuple[bytes, Headers]:
    """Some values are made hostile, or the bytes are damaged, or they are too many."""
    written = _bytes(_mutated(body, draw)) + b" " * (2**20 * (draw.random() < 0.02))
    kind = draw.choice(("application/json",) * 15 + ("text/plain", "x", "multipart/form-data"))
    return _damaged(written, draw), {"Content-Type": kind}


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
            holder[_text(draw)] = _hostile(draw)
        else:
            del holder[key]
    return body


def _places(body: Any) -> Any:
    for key, value in list(body.items() if isinstance(body, dict) else enumerate(body)):
        yield body, key
        if isinstance(value, dict | list):
            yield from _places(value)


def _hostile(draw: Random) -> _Raw:
    return _text(draw) if draw.random() < 0.4 else _Raw(draw.choice(_LITERALS))


def _text(draw: Random) -> _Raw:
    return _Raw(json.dumps(draw.choice(_TEXTS), ensure_ascii=draw.random() < 0.7))


def _written(value: Any) -> str:
    if isinstance(value, dict):
        items = (
            f"{key if isinstance(key, _Raw) else json.dumps(key)}:{_written(item)}"
            for key, item in value.items()
        )
        return "{" + ",".join(items) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_written, value)) + "]"
    return value if isinstance(value, _Raw) else json.dumps(value)


def _bytes(value: Any) -> bytes:
    return _written(value).encode(errors="surrogatepass")


def _damaged(body: bytes, draw: Random) -> bytes:
    if draw.random() > 0.06:
        return body
    cut = draw.randrange(len(body) + 1)
    text = body.decode(errors="replace")
    damages = (body[:cut], b"\xef\xbb\xbf" + body, text.encode("utf-16"), gzip.compress(body), b"")
    return draw.choice((*damages, body[:cut] + draw.randbytes(4) + body[cut:]))
