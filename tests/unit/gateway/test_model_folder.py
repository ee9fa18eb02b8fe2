"""Which model names are accepted, and which files a model has."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from services.chassis.deployment import Deployment
from services.gateway.errors import Problem
from services.gateway.models.files import model_files
from services.gateway.models.folders import resolve_model


def a_deployment(*roots: Path, hub: str = "off") -> Deployment:
    return Deployment.from_environment(
        {
            "WEIR_REDIS_URL": "redis://127.0.0.1:1",
            "WEIR_DATA_DIR": "/nowhere",
            "WEIR_PORT": "1",
            "WEIR_MODEL_ROOTS": ":".join(map(str, roots)),
            "WEIR_MODEL_HUB": hub,
        }
    )


def a_model(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model-00001-of-00001.safetensors").write_bytes(b"")
    return folder


def test_every_root_is_searched_for_a_relative_name(tmp_path: Path) -> None:
    model = a_model(tmp_path / "b" / "family" / "tiny")
    deployment = a_deployment(tmp_path / "a", tmp_path / "b")
    assert resolve_model("family/tiny", deployment) == str(model)
    assert resolve_model("./family//tiny/", deployment) == str(model)
    assert resolve_model(str(model), deployment) == str(model)


@pytest.mark.parametrize("name", ["family/tiny", "./family/tiny", "/family/tiny", "family"])
def test_a_model_that_is_nowhere_is_refused_without_telling_where_the_roots_are(
    tmp_path: Path, name: str
) -> None:
    deployment = a_deployment(tmp_path / "a", tmp_path / "b")
    with pytest.raises(Problem, match=f"'{name}' below WEIR_MODEL_ROOTS") as refused:
        resolve_model(name, deployment)
    assert str(tmp_path) not in str(refused.value.detail)


def test_a_link_within_the_roots_is_followed_and_one_out_of_them_is_not(tmp_path: Path) -> None:
    model, secret = a_model(tmp_path / "root" / "v2"), a_model(tmp_path / "secret")
    (tmp_path / "root" / "newest").symlink_to(model)
    (tmp_path / "root" / "out").symlink_to(secret)
    deployment = a_deployment(tmp_path / "root")
    assert resolve_model("newest", deployment) == str(model)
    with pytest.raises(Problem, match="no model folder 'out'"):
        resolve_model("out", deployment)


@pytest.mark.parametrize("name", ["../secret", "a/../../secret", "..", "\0"])
def test_a_name_that_climbs_is_refused(tmp_path: Path, name: str) -> None:
    a_model(tmp_path / "secret")
    (tmp_path / "root" / "a").mkdir(parents=True)
    with pytest.raises(Problem, match="must not contain"):
        resolve_model(name, a_deployment(tmp_path / "root"))


def test_a_sibling_whose_name_begins_like_the_root_is_outside(tmp_path: Path) -> None:
    sibling = a_model(tmp_path / "root-of-another")
    (tmp_path / "root").mkdir()
    with pytest.raises(Problem, match="WEIR_MODEL_ROOTS"):
        resolve_model(str(sibling), a_deployment(tmp_path / "root"))


def test_an_adapter_is_no_model(tmp_path: Path) -> None:
    folder = a_model(tmp_path / "adapter")
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(Problem, match=r"'adapter' is a LoRA adapter; .* model\.lora\.merge"):
        resolve_model("adapter", a_deployment(tmp_path))


def test_hub_ids_need_a_hub(tmp_path: Path) -> None:
    with pytest.raises(Problem, match="WEIR_MODEL_HUB=on"):
        resolve_model("Qwen/Qwen3-4B", a_deployment(tmp_path))
    hub = a_deployment(tmp_path, hub="on")
    assert resolve_model("Qwen/Qwen3-4B", hub) == "Qwen/Qwen3-4B"
    with pytest.raises(Problem, match="not a hub id"):
        resolve_model("/etc/passwd", hub)


@pytest.mark.parametrize("name", ["../up", "nowhere"])
def test_a_refusal_names_where_the_model_was_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(Problem, match=r"recipe\.critic\.path: ") as refused:
        resolve_model(name, a_deployment(tmp_path), "recipe.critic.path")
    assert refused.value.param == "recipe.critic.path"


@pytest.mark.parametrize("name", ["tokenizer.json", "deep/down/chat_template.jinja", "notes"])
def test_no_file_of_a_model_may_be_a_link_out_of_the_roots(tmp_path: Path, name: str) -> None:
    model, secret = a_model(tmp_path / "root" / "tiny"), tmp_path / "secret"
    secret.write_text("secret")
    (model / name).parent.mkdir(parents=True, exist_ok=True)
    (model / name).symlink_to(secret)
    with pytest.raises(Problem, match=f"'tiny' holds {name}, a link that leaves") as refused:
        resolve_model("tiny", a_deployment(tmp_path / "root"))
    assert str(tmp_path) not in str(refused.value.detail)
    (model / name).unlink()
    (tmp_path / "root" / "shared").write_text("{}")
    (model / name).symlink_to(tmp_path / "root" / "shared")
    assert resolve_model("tiny", a_deployment(tmp_path / "root")) == str(model)


@pytest.mark.parametrize("target", ["..", "nowhere", "loop"])
def test_a_link_to_a_folder_or_to_nothing_is_refused(tmp_path: Path, target: str) -> None:
    model = a_model(tmp_path / "root" / "tiny")
    (model / "loop").symlink_to("loop" if target == "loop" else target)
    with pytest.raises(Problem, match="holds loop, a link to a folder or to nothing"):
        resolve_model("tiny", a_deployment(tmp_path / "root"))


@pytest.mark.parametrize(
    "name",
    ["loop", "loop/tiny", "n" * 256, pytest.param("n" * 5_000, id="long"), "tiny/config.json"],
)
def test_a_name_that_leads_to_no_folder_is_refused(tmp_path: Path, name: str) -> None:
    root = a_model(tmp_path / "root" / "tiny").parent
    (root / "loop").symlink_to("loop")
    with pytest.raises(Problem, match="there is no model folder") as refused:
        resolve_model(name, a_deployment(root))
    assert len(str(refused.value.detail)) < 600


@pytest.mark.parametrize("lacking", ["config.json", "model-00001-of-00001.safetensors"])
def test_a_folder_that_lacks_a_part_of_a_model_is_refused(tmp_path: Path, lacking: str) -> None:
    (a_model(tmp_path / "root" / "tiny") / lacking).unlink()
    with pytest.raises(Problem, match=rf"'tiny' has no \S*{lacking.rpartition('.')[2]}"):
        resolve_model("tiny", a_deployment(tmp_path / "root"))


def test_a_model_that_goes_while_its_files_are_listed_is_told_as_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = a_model(tmp_path / "model")
    scan = os.scandir

    def deleted_meanwhile(folder: Path) -> AbstractContextManager[list[os.DirEntry[str]]]:
        entries = list(scan(folder))
        folder.rename(tmp_path / ".deleted-model")
        return nullcontext(entries)

    monkeypatch.setattr(os, "scandir", deleted_meanwhile)
    with pytest.raises(Problem, match="has just gone") as caught:
        model_files(model)
    assert caught.value.status_code == 404
