"""Names of models, and the facts in a model's folder."""

from collections.abc import Callable
from pathlib import Path

import pytest

from services.chassis.deployment import Deployment
from services.gateway.core.jobs.folders import copy_models
from services.gateway.core.models.folders import UNKNOWN_FACTS, read_facts, resolve_model
from services.gateway.errors import Problem
from tests.builders import a_recipe
from tests.tables import table
from tests.unit.gateway.refusing import refused

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
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / WEIGHTS).write_bytes(b"")
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder of models, with a model in it."""
    a_model(tmp_path / "root/tiny")
    return tmp_path / "root"


@pytest.mark.parametrize("name", ["family/tiny", "./family//tiny/", "{}/family/tiny", "newest"])
def test_every_root_is_searched_and_links_within_it_are_followed(root: Path, name: str) -> None:
    model = a_model(root / "family/tiny")
    (root / "newest").symlink_to(model)
    assert resolve_model(name.format(root), a_deployment(root / "a", root)) == str(model)


@table(
    """
    name
    family/tiny
    /family/tiny
    ../secret
    a/../../secret
    loop
    out
    {}-of-another
    tiny/config.json
    Qwen/Qwen3-4B
""",
    ("\0",),
    ("n" * 5_000,),
)
def test_a_name_that_leads_to_no_model_below_the_roots_is_refused_and_shows_no_root(
    root: Path, name: str
) -> None:
    a_model(root.with_name("root-of-another"))
    (root / "loop").symlink_to("loop")
    (root / "out").symlink_to(a_model(root.with_name("secret")))
    name = name.format(root)
    with refused(400, param="recipe.critic.path") as caught:
        resolve_model(name, a_deployment(root), "recipe.critic.path")
    assert str(root) not in caught.value.detail.replace(name, "")
    assert len(caught.value.detail) < 600


def test_hub_ids_need_a_hub(tmp_path: Path) -> None:
    hub = a_deployment(tmp_path, hub="on")
    assert resolve_model("Qwen/Qwen3-4B", hub) == "Qwen/Qwen3-4B"
    with refused(400):
        resolve_model("/etc/passwd", hub)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda model: (model / "adapter_config.json").write_text("{}"), "LoRA"),
        (lambda model: (model / "config.json").unlink(), "config.json"),
        (lambda model: (model / "config.json").write_text("{}"), "model_type"),
        (lambda model: (model / "config.json").write_text("{oops"), "line 1 column 2"),
        (lambda model: (model / WEIGHTS).rename(model / "pickled.bin"), "safetensors"),
        (lambda model: (model / "a").symlink_to(".."), "a, a link"),
    ],
)
def test_a_folder_that_holds_no_sound_model_is_refused(
    root: Path, spoil: Callable[[Path], object], words: str
) -> None:
    spoil(root / "tiny")
    with pytest.raises(Problem, match=words):
        resolve_model("tiny", a_deployment(root))


@pytest.mark.parametrize("name", ["tokenizer.json", "deep/down/chat_template.jinja"])
def test_no_file_of_a_model_may_be_a_link_out_of_the_roots(root: Path, name: str) -> None:
    file = root / "tiny" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    secret = root.with_name("secret")
    secret.write_text("secret")
    file.symlink_to(secret)
    with pytest.raises(Problem, match=name) as caught:
        resolve_model("tiny", a_deployment(root))
    assert str(root.parent) not in caught.value.detail
    file.unlink()
    secret.rename(root / "shared")
    file.symlink_to(root / "shared")
    assert resolve_model("tiny", a_deployment(root)) == str(root / "tiny")


def test_a_model_that_cannot_be_copied_for_a_new_job_is_a_conflict_that_leaves_nothing(
    tmp_path: Path,
) -> None:
    jobs = tmp_path / "jobs"
    model = a_model(jobs / "other/model")
    critic = {"path": str(jobs / "gone/model")}
    recipe = a_recipe(model={"path": str(model)}, critic=critic, algorithm={"advantage": "gae"})
    with refused(409, param="critic"):
        copy_models(recipe, a_deployment(data=tmp_path), "mine")
    assert [folder.name for folder in jobs.iterdir()] == ["other"]


# ---------------------------------------------------------------------- facts


@table("""
    config                                                                            | context
    {"max_position_embeddings": 256}                                                  | 256
    {"n_positions": 1024, "max_position_embeddings": 2048}                            | 1024
    {"text_config": {"max_position_embeddings": 512}}                                 | 512
    {"max_position_embeddings": 100, "rope_scaling": {"type": "linear", "factor": 4}} | 400
    {"max_position_embeddings": 100, "rope_parameters": {"a": {"factor": 2}}}         | 200
    {"max_position_embeddings": 100, "rope_scaling": {"factor": null}}                | 100
    {}                                                                                | None
""")
def test_the_context_is_read_from_the_configuration(
    tmp_path: Path, config: str, context: int | None
) -> None:
    (tmp_path / "config.json").write_text(config)
    assert read_facts(str(tmp_path)).context == context


def test_a_chat_template_is_found_wherever_it_lies(tmp_path: Path) -> None:
    for name, content, has_template in (
        ("config.json", "{}", False),
        ("tokenizer_config.json", '{"chat_template": "{{x}}"}', True),
        ("tokenizer_config.json", '{"chat_template": ""}', False),
        ("tekken.json", "", None),
        ("chat_template.jinja", "", True),
    ):
        (tmp_path / name).write_text(content)
        assert read_facts(str(tmp_path)).has_chat_template is has_template, name
    assert read_facts("Qwen/Qwen3-4B") == UNKNOWN_FACTS


@pytest.mark.parametrize("damaged", ["{oops", "[]"])
def test_a_configuration_that_is_damaged_is_named(tmp_path: Path, damaged: str) -> None:
    (tmp_path / "config.json").write_text(damaged)
    with refused(400, param="model", match="config") as caught:
        read_facts(str(tmp_path))
    assert str(tmp_path) not in caught.value.detail
