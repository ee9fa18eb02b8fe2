"""Names of models, and the facts in a model's folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from services.chassis.deployment import Deployment
from services.gateway.core.jobs.folders import copy_models
from services.gateway.core.models.folders import UNKNOWN_FACTS, read_facts, resolve_model
from services.gateway.errors import Problem
from tests.builders import a_recipe

WEIGHTS = "model-00001-of-00001.safetensors"


def a_deployment(*roots: Path, hub: str = "off", data: Path = Path("/nowhere")) -> Deployment:
    return Deployment.from_environment(
        {
            "WEIR_REDIS_URL": "redis://127.0.0.1:1",
            "WEIR_DATA_DIR": str(data),
            "WEIR_PORT": "1",
            "WEIR_MODEL_ROOTS": ":".join(map(str, roots)),
            "WEIR_MODEL_HUB": hub,
        }
    )


def a_model(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / WEIGHTS).write_bytes(b"")
    return folder


def test_every_root_is_searched_and_links_within_it_are_followed(tmp_path: Path) -> None:
    model = a_model(tmp_path / "b" / "family" / "tiny")
    (tmp_path / "b" / "newest").symlink_to(model)
    deployment = a_deployment(tmp_path / "a", tmp_path / "b")
    for name in ("family/tiny", "./family//tiny/", str(model), "newest"):
        assert resolve_model(name, deployment) == str(model)


@pytest.mark.parametrize(
    "name",
    [
        "family/tiny",
        "/family/tiny",
        "../secret",
        "a/../../secret",
        "\0",
        "n" * 5_000,
        "loop",
        "out",
        "{}/root-of-another",
        "tiny/config.json",
        "Qwen/Qwen3-4B",
    ],
)
def test_a_name_that_leads_to_no_model_below_the_roots_is_refused_and_shows_no_root(
    tmp_path: Path, name: str
) -> None:
    root = a_model(tmp_path / "root" / "tiny").parent
    a_model(tmp_path / "root-of-another")
    (root / "loop").symlink_to("loop")
    (root / "out").symlink_to(a_model(tmp_path / "secret"))
    name = name.format(tmp_path)
    with pytest.raises(Problem) as refused:
        resolve_model(name, a_deployment(root), "recipe.critic.path")
    assert refused.value.status_code == 400
    assert refused.value.param == "recipe.critic.path"
    assert str(root) not in refused.value.detail.replace(name, "")
    assert len(refused.value.detail) < 600


def test_hub_ids_need_a_hub(tmp_path: Path) -> None:
    hub = a_deployment(tmp_path, hub="on")
    assert resolve_model("Qwen/Qwen3-4B", hub) == "Qwen/Qwen3-4B"
    with pytest.raises(Problem):
        resolve_model("/etc/passwd", hub)


SPOILED: dict[str, tuple[Callable[[Path], object], str]] = {
    "an adapter": (lambda model: (model / "adapter_config.json").write_text("{}"), "LoRA"),
    "no config": (lambda model: (model / "config.json").unlink(), "config.json"),
    "pickled weights": (lambda model: (model / WEIGHTS).rename(model / "a.bin"), "safetensors"),
    "a link to a folder": (lambda model: (model / "a").symlink_to(".."), "a, a link"),
}


@pytest.mark.parametrize("case", SPOILED)
def test_a_folder_that_holds_no_sound_model_is_refused(tmp_path: Path, case: str) -> None:
    spoil, named = SPOILED[case]
    spoil(a_model(tmp_path / "root" / "tiny"))
    with pytest.raises(Problem, match=named):
        resolve_model("tiny", a_deployment(tmp_path / "root"))


@pytest.mark.parametrize("name", ["tokenizer.json", "deep/down/chat_template.jinja"])
def test_no_file_of_a_model_may_be_a_link_out_of_the_roots(tmp_path: Path, name: str) -> None:
    model = a_model(tmp_path / "root" / "tiny")
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (model / name).parent.mkdir(parents=True, exist_ok=True)
    (model / name).symlink_to(secret)
    with pytest.raises(Problem, match=name) as refused:
        resolve_model("tiny", a_deployment(tmp_path / "root"))
    assert str(tmp_path) not in str(refused.value.detail)
    (model / name).unlink()
    secret.rename(tmp_path / "root" / "shared")
    (model / name).symlink_to(tmp_path / "root" / "shared")
    assert resolve_model("tiny", a_deployment(tmp_path / "root")) == str(model)


def test_a_model_that_cannot_be_copied_for_a_new_job_is_a_conflict_that_leaves_nothing(
    tmp_path: Path,
) -> None:
    jobs = tmp_path / "jobs"
    model = a_model(jobs / "other/model")
    critic = {"path": str(jobs / "gone/model")}
    recipe = a_recipe(model={"path": str(model)}, critic=critic, algorithm={"advantage": "gae"})
    with pytest.raises(Problem) as refused:
        copy_models(recipe, a_deployment(data=tmp_path), "mine")
    assert refused.value.status_code == 409
    assert refused.value.param == "critic"
    assert [folder.name for folder in jobs.iterdir()] == ["other"]


# ---------------------------------------------------------------------- facts


@pytest.mark.parametrize(
    ("config", "context"),
    [
        ({"max_position_embeddings": 256}, 256),
        ({"n_positions": 1024, "max_position_embeddings": 2048}, 1024),
        ({"text_config": {"max_position_embeddings": 512}}, 512),
        ({"max_position_embeddings": 100, "rope_scaling": {"type": "linear", "factor": 4.0}}, 400),
        ({"max_position_embeddings": 100, "rope_parameters": {"a": {"factor": 2}}}, 200),
        ({"max_position_embeddings": 100, "rope_scaling": {"factor": None}}, 100),
        ({}, None),
    ],
)
def test_the_context_is_read_from_the_configuration(
    tmp_path: Path, config: Any, context: int | None
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_facts(str(tmp_path)).context == context


def test_a_chat_template_is_found_wherever_it_lies(tmp_path: Path) -> None:
    def has_template(tokenizer: dict[str, str] | None = None) -> bool | None:
        if tokenizer is not None:
            (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokenizer))
        return read_facts(str(tmp_path)).has_chat_template

    assert has_template() is False
    assert has_template({"chat_template": "{{x}}"}) is True
    assert has_template({"chat_template": ""}) is False
    (tmp_path / "tekken.json").touch()
    assert has_template() is None
    (tmp_path / "chat_template.jinja").touch()
    assert has_template() is True
    assert read_facts("Qwen/Qwen3-4B") == UNKNOWN_FACTS


@pytest.mark.parametrize("damaged", ["{oops", "[]"])
def test_a_configuration_that_is_damaged_is_named(tmp_path: Path, damaged: str) -> None:
    (tmp_path / "config.json").write_text(damaged)
    with pytest.raises(Problem, match="config") as caught:
        read_facts(str(tmp_path))
    assert caught.value.status_code == 400
    assert caught.value.param == "model"
    assert str(tmp_path) not in caught.value.detail
