"""Every wrong input is a 4xx that names the field (and the line), and leaves nothing behind."""

from __future__ import annotations

import gzip
import json
from typing import Any

import httpx
import pytest

from tests.contract.gateway.stack import (
    JOBS,
    RECIPE,
    Stack,
    a_body,
    a_job,
    assert_refused,
    changed,
    reinforcement,
)

pytestmark = pytest.mark.redis


BAD_RECIPES = {
    "unknown key": ("training.stepz", 3, "recipe.training.stepz"),
    "unknown table": ("trainning", {}, "recipe.trainning"),
    "wrong type": ("training.steps", "many", "recipe.training.steps"),
    "out of range": ("rollout.sampling.temperature", 0, "recipe.rollout.sampling.temperature"),
    "not finite": ("optimizer.learning_rate", 1e999, "recipe.optimizer.learning_rate"),
    "a table that is none": ("model", 3, "recipe.model"),
    "another model": ("model.path", "other", "recipe.model.path"),
    "unknown key of tasks": ("tasks.tran", "x", "recipe.tasks.tran"),
    "held-out tasks, no file": ("tasks.held_out", "held_out.jsonl", "validation_file"),
    "evaluation, no file": ("evaluation", {"samples": 1}, "recipe"),
}


@pytest.mark.parametrize("case", BAD_RECIPES)
def test_a_bad_recipe_is_refused_naming_the_field(
    stack: Stack, http: httpx.Client, case: str
) -> None:
    path, value, param = BAD_RECIPES[case]
    body = a_body(http, recipe=changed(RECIPE, path, value))
    before = stack.left()
    reply = http.post(JOBS, content=json.dumps(body), headers={"Content-Type": "application/json"})
    assert_refused(reply, 400, param)
    assert stack.left() == before


def a_check_nested(depth: int) -> dict[str, Any]:
    nested: list[Any] = []
    for _ in range(depth - 1):
        nested = [nested]
    return {"verifier": "my.oracle", "settings": {"a": nested}}


HYPER = "method.reinforcement.hyperparameters"
BAD_BODIES = {
    "missing model folder": ({"model": "absent"}, "model", "WEIR_MODEL_ROOTS"),
    "a path out of the root": ({"model": "../outside"}, "model", ".."),
    "an absolute path elsewhere": ({"model": "/etc"}, "model", "WEIR_MODEL_ROOTS"),
    "a link out of the root": ({"model": "escape"}, "model", "WEIR_MODEL_ROOTS"),
    "weights that are a link out": ({"model": "leak"}, "model", "link"),
    "a tokenizer that is a link out": ({"model": "leak-tokenizer"}, "model", "link"),
    "a loop of links": ({"model": "loop/tiny"}, "model", "WEIR_MODEL_ROOTS"),
    "a name that no file can have": ({"model": "n" * 256}, "model", "WEIR_MODEL_ROOTS"),
    "pickled weights only": ({"model": "pickled"}, "model", "safetensors"),
    "no config.json": ({"model": "no-config"}, "model", "config.json"),
    "a hub id without a hub": ({"model": "Qwen/Qwen3-4B"}, "model", "WEIR_MODEL_HUB=on"),
    "a null byte": ({"model": "ti\0ny"}, "model", ".."),
    "no such training file": ({"training_file": "file-0"}, "training_file", "POST /v1/files"),
    "a file id that is a path": ({"training_file": "../x"}, "training_file", "POST /v1/files"),
    "no such validation file": ({"validation_file": "file-0"}, "validation_file", "no file"),
    "a model of a long name": ({"model": "é" * 200}, "model", "WEIR_MODEL_ROOTS"),
    "a critic of a long name": (
        {"recipe": RECIPE | {"critic": {"path": "x" * 300}, "algorithm": {"advantage": "gae"}}},
        "recipe.critic.path",
        "WEIR_MODEL_ROOTS",
    ),
    "a model that is a loop of links": ({"model": "loop"}, "model", "WEIR_MODEL_ROOTS"),
    "weights that are a loop of links": ({"model": "looped"}, "model", "link"),
    "more epochs than a float holds": (
        {"method": reinforcement(hyperparameters={"n_epochs": 10**400})},
        f"{HYPER}.n_epochs",
        "64 bits",
    ),
    "a group size beyond 64 bits": (
        {"recipe": changed(RECIPE, "rollout.group_size", 10**400)},
        "recipe.rollout.group_size",
        "64 bits",
    ),
    "more steps than can be counted": (
        {"recipe": changed(RECIPE, "training.steps", 2**62)},
        "recipe.training.steps",
        "9,007,199,254,740,992",
    ),
    "a setting that nests deeper than services can read": (
        {"recipe": changed(RECIPE, "reward.outcome", a_check_nested(205))},
        "body",
        "64 levels",
    ),
    "an unknown field": ({"modle": "tiny"}, "modle", "unknown key"),
    "a seed that is a word": ({"seed": "7"}, "seed", "integer"),
    "a method of another kind": ({"method": {"type": "dpo"}}, "method.type", "reinforcement"),
    "a grader whose code is none": (
        {"method": reinforcement(grader={"type": "python", "source": "x"})},
        "method.reinforcement.grader.source",
        "define grade",
    ),
    "a grader that fits no recipe": (
        {
            "method": reinforcement(
                grader={
                    "type": "multi",
                    "graders": {"a": {"type": "math_answer"}},
                    "calculate_output": "a % 2",
                }
            )
        },
        "method.reinforcement.grader.calculate_output",
        "max(a, 0.5 * b)",
    ),
    "a grader against the recipe": (
        {
            "method": reinforcement(grader={"type": "math_answer"}),
            "recipe": changed(RECIPE, "reward.outcome", "math_answer"),
        },
        "method.reinforcement.grader",
        "give one",
    ),
    "an unknown hyperparameter": (
        {"method": reinforcement(hyperparameters={"lr": 1})},
        f"{HYPER}.lr",
        "unknown key",
    ),
    "a hyperparameter that means nothing here": (
        {"method": reinforcement(hyperparameters={"reasoning_effort": "high"})},
        f"{HYPER}.reasoning_effort",
        "recipe.model.prompt_template",
    ),
    "a hyperparameter against the recipe": (
        {"method": reinforcement(hyperparameters={"batch_size": 5})},
        f"{HYPER}.batch_size",
        "recipe.training.groups_per_step",
    ),
    "hyperparameters in two places": (
        {
            "hyperparameters": {"n_epochs": 1},
            "method": reinforcement(hyperparameters={"batch_size": 2}),
        },
        "hyperparameters",
        HYPER,
    ),
    "a temperature at which no engine samples": (
        {"recipe": changed(RECIPE, "rollout.sampling.temperature", 1e300)},
        "recipe.rollout.sampling.temperature",
        "0.01 to 2",
    ),
    "an empty stop": (
        {"recipe": changed(RECIPE, "rollout.sampling.stop", [""])},
        "recipe.rollout.sampling.stop",
        "remove it",
    ),
    "a formula that no learner has": (
        {"recipe": changed(RECIPE, "algorithm.advantage", "my_lab.squared")},
        "recipe.algorithm.advantage",
        "WEIR_EXTENSIONS",
    ),
    "a model that has no chat template": (
        {"recipe": changed(RECIPE, "model.prompt_template", None)},
        "recipe.model.prompt_template",
        "no chat template",
    ),
    "W&B": (
        {"integrations": [{"type": "wandb", "wandb": {"project": "p"}}]},
        "integrations",
        "weir track JOB --to wandb:PROJECT",
    ),
    "no epochs": (
        {"method": reinforcement(hyperparameters={"n_epochs": 0})},
        f"{HYPER}.n_epochs",
        "greater than or equal to 1",
    ),
    "too much metadata": (
        {"metadata": {str(n): "x" for n in range(17)}},
        "metadata",
        "16 pairs",
    ),
}


@pytest.mark.parametrize("case", BAD_BODIES)
def test_a_bad_submission_is_refused_naming_field_and_remedy(
    stack: Stack, http: httpx.Client, case: str
) -> None:
    changes, param, remedy = BAD_BODIES[case]
    body = a_body(http, **changes)
    before = stack.left()
    reply = http.post(JOBS, json=body)
    assert_refused(reply, 400, param)
    assert remedy in reply.json()["error"]["message"]
    assert stack.left() == before


HALF = "\ud83d"
HALF_CHARACTERS = {
    "metadata": ({"metadata": {"team": HALF}}, "metadata.team"),
    "a key of metadata": ({"metadata": {HALF: "a"}}, r"metadata.\ud83d"),
    "suffix": ({"suffix": HALF}, "suffix"),
    "an unknown field": ({HALF: 1}, r"\ud83d"),
    "a prompt template": (
        {"recipe": changed(RECIPE, "model.prompt_template", f"{HALF}{{prompt}}")},
        "recipe.model.prompt_template",
    ),
    "an unknown key of the recipe": (
        {"recipe": changed(RECIPE, f"training.{HALF}", 1)},
        r"recipe.training.\ud83d",
    ),
}


@pytest.mark.parametrize("case", HALF_CHARACTERS)
def test_half_a_character_is_refused_wherever_it_stands(
    stack: Stack, http: httpx.Client, case: str
) -> None:
    changes, param = HALF_CHARACTERS[case]
    body = json.dumps(a_body(http, **changes))
    before = stack.left()
    reply = http.post(JOBS, content=body, headers={"Content-Type": "application/json"})
    assert_refused(reply, 400, param)
    assert "half a character" in reply.json()["detail"]
    assert stack.left() == before


def test_half_a_character_in_a_grader_is_refused(http: httpx.Client) -> None:
    body = json.dumps({"grader": {"type": "string_check", "reference": HALF}})
    url, headers = "/v1/fine_tuning/alpha/graders/validate", {"Content-Type": "application/json"}
    assert_refused(http.post(url, content=body, headers=headers), 400, "grader.reference")


@pytest.mark.parametrize("missing", ["model", "training_file"])
def test_a_submission_without_a_required_field_is_refused(
    stack: Stack, http: httpx.Client, missing: str
) -> None:
    body = a_body(http)
    del body[missing]
    before = stack.left()
    assert_refused(http.post(JOBS, json=body), 400, missing)
    assert stack.left() == before


@pytest.mark.parametrize(
    ("content", "content_type"),
    [
        ("{not json", "application/json"),
        ("[1]", "application/json"),
        ("", "application/json"),
        ("[" * 100_000, "application/json"),
        ("a=b", "application/x-www-form-urlencoded"),
    ],
)
def test_a_body_that_is_no_json_object_is_refused(
    stack: Stack, http: httpx.Client, content: str, content_type: str
) -> None:
    before = stack.left()
    reply = http.post(JOBS, content=content, headers={"Content-Type": content_type})
    assert_refused(reply, 400, "body")
    assert stack.left() == before


@pytest.mark.parametrize("path", [JOBS, "/v1/files", "/v1/uploads"])
def test_a_compressed_body_is_refused_naming_the_remedy(
    stack: Stack, http: httpx.Client, path: str
) -> None:
    kind = "multipart/form-data; boundary=b" if path == "/v1/files" else "application/json"
    headers = {"Content-Type": kind, "Content-Encoding": "gzip"}
    before = stack.left()
    reply = http.post(path, content=gzip.compress(b'{"model": "tiny"}'), headers=headers)
    assert_refused(reply, 415, "Content-Encoding")
    assert "send it uncompressed" in reply.json()["detail"]
    assert stack.left() == before


def test_where_no_body_is_read_its_coding_does_not_matter(http: httpx.Client) -> None:
    for coding in ("gzip", ""):
        reply = http.post(
            f"{JOBS}/{a_job(http)['id']}/cancel", headers={"Content-Encoding": coding}
        )
        assert reply.status_code == 200


def test_a_body_that_is_not_utf_8_is_refused_naming_the_byte(http: httpx.Client) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": "Identity"}
    reply = http.post(JOBS, content=b'{"model": "t\xffny"}', headers=headers)
    assert_refused(reply, 400, "body")
    assert reply.json()["detail"] == "body: not UTF-8: byte 13 is 0xff; send JSON in UTF-8"


def test_a_json_body_beyond_a_mebibyte_is_refused(stack: Stack, http: httpx.Client) -> None:
    before = stack.left()
    reply = http.post(JOBS, json={"model": "x" * 2**20})
    assert_refused(reply, 413, "body")
    assert stack.left() == before


@pytest.mark.parametrize("key", [None, "wrong", "test-key-and-more"])
@pytest.mark.parametrize("path", ["/v1/files", JOBS, f"{JOBS}/x/events", "/v1/nothing"])
def test_nothing_below_v1_opens_without_a_key(stack: Stack, key: str | None, path: str) -> None:
    before = stack.left()
    with stack.http(key) as stranger:
        assert_refused(stranger.get(path), 401, "Authorization")
        assert_refused(stranger.post(path, json={"model": "tiny"}), 401, "Authorization")
    assert stack.left() == before


def test_a_job_that_could_fill_redis_is_refused_with_the_arithmetic(
    stack: Stack, http: httpx.Client
) -> None:
    def limit(value: int) -> None:
        stack.exchange(lambda exchange: exchange.writer.config_set("maxmemory", value))

    body = a_body(http, recipe=changed(RECIPE, "training.groups_per_step", 4096))
    before = stack.left()
    limit(32 * 2**20)
    try:
        reply = http.post(JOBS, json=body)
    finally:
        limit(0)
    assert_refused(reply, 400, "recipe.rollout")
    # (1 + 1) x 4096 x 4 responses x 64 tokens x 16 bytes
    assert "33,554,432 bytes" in reply.json()["detail"]
    assert "groups_per_step 4096" in reply.json()["detail"]
    assert stack.left() == before
