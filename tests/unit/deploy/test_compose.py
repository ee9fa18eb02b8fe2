"""The compose files: locked down, wired as the code expects, each GPU where the placement has it.
No container is started."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from protocol.recipe import Model

from deploy import compose
from deploy.placement import parse
from services.chassis.deployment import Deployment
from services.grader.judge.settings import deployed_judges
from services.grader.tools import Settings
from services.rollout.settings import EngineSettings
from tests.architecture.project import DOCUMENTS
from weir.stack import find_stack

ROOT = Path(__file__).parents[3]
SERVICES = ("gateway", "grader", "rollout", "learner")
BASE_TEXT = (ROOT / "docker-compose.yml").read_text()
JUDGED = "learner=0-3 rollout=4-5 rollout=6@0.5 judge=7@0.6"
TEXTS = {path.name: path.read_text() for path in (ROOT / "deploy/compose").glob("*.yml")}
TEXTS["judged"] = compose.written(parse(JUDGED), "a test")
VARIABLE = re.compile(r"\$\{(\w+)(?::-((?:[^}]|\}(?=\}))*?))?\}")
OF_ONE = {  # the chassis reads it for all
    "WEIR_API_KEYS": "gateway",
    "WEIR_EXTENSIONS": "learner",
    "WEIR_KEEP_SAMPLES_BYTES": "learner",
    "WEIR_KEEP_SAMPLES_DAYS": "learner",
    "WEIR_TRUSTED_PROXIES": "gateway",
    "WEIR_WEIGHTS": "learner",
}
NOT_OF_CONTAINERS = {"WEIR_API_KEY", "WEIR_HOME", "WEIR_ROLLOUTS"}


class Loader(yaml.SafeLoader):
    """Reads a file as compose does; what it resets is None, and all its lists here replace."""


Loader.add_constructor(
    "!override",
    lambda loader, node: loader.construct_sequence(node, deep=True),  # type: ignore[arg-type]
)
Loader.add_constructor("!reset", lambda loader, node: None)


def read(text: str) -> dict[str, Any]:
    """A file as a person has it who has set no variable."""
    return yaml.load(VARIABLE.sub(lambda match: match[2] or "", text), Loader=Loader)


def merged(below: Any, above: Any) -> Any:
    """One value on top of another."""
    if isinstance(below, list) and isinstance(above, dict):  # networks, in short and in full
        below = {name: {} for name in below}
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    both = below | {key: merged(below.get(key), value) for key, value in above.items()}
    return {key: value for key, value in both.items() if key not in above or value is not None}


def stack(gpu_text: str = "services: {}") -> dict[str, Any]:
    """The services of docker-compose.yml with a file of GPUs on top."""
    base = read(BASE_TEXT)["services"]
    services = dict(base)
    for name, own in read(gpu_text)["services"].items():
        extended = own.pop("extends", {"service": name})["service"]
        services[name] = merged(base.get(extended, {}), own)
    return services


BASE = read(BASE_TEXT)
STACKS = {"cpu": stack()} | {name: stack(text) for name, text in TEXTS.items()}
every_stack = pytest.mark.parametrize("services", STACKS.values(), ids=STACKS)


def ours(services: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The containers that run one of the four services."""
    return {
        name: service
        for name, service in services.items()
        if service["image"].startswith("weir/") and name != "trackers"
    }


def gpus_of(service: dict[str, Any]) -> list[str]:
    """The GPUs that a container sees."""
    reserved = service.get("deploy", {}).get("resources", {}).get("reservations", {})
    return [gpu for device in reserved.get("devices", []) for gpu in device.get("device_ids", [])]


def read_by(*folders: str) -> set[str]:
    """The variables that the code in these folders reads."""
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return {name for path in paths for name in re.findall(r'"(WEIR_[A-Z_]+)"', path.read_text())}


@every_stack
def test_containers_may_do_little(services: dict[str, Any]) -> None:
    assert {name: service["ports"] for name, service in services.items() if "ports" in service} == {
        "gateway": ["8000:8000"],
        "grafana": ["127.0.0.1:3000:3000"],
    }
    assert BASE["networks"]["inside"]["internal"] is True
    outside = {name for name, service in services.items() if "edge" in service["networks"]}
    assert outside == {"gateway", "grader", "learner", "grafana", "trackers"}
    for name, service in services.items():
        assert "inside" in service["networks"], name
        assert "no-new-privileges:true" in service["security_opt"], name
        assert not service.get("privileged"), name
        if name not in {"judge", "dcgm-exporter"}:  # these run as root
            assert service["read_only"] is True, name
            assert service["cap_drop"] == ["ALL"], name
            assert "cap_add" not in service, name
        image, _, tag = service["image"].partition(":")
        assert re.search(r"\d+\.\d+", tag) or image.startswith("weir/"), "pinned"
        assert "." not in image.split("/")[0], "named without a host"
    for name, service in ours(services).items():
        assert "user" not in service, name  # the image's
        assert service["tmpfs"][0].startswith("/tmp"), name


@every_stack
def test_secrets_volumes_and_networks_are_declared_and_no_secret_is_a_variable(
    services: dict[str, Any],
) -> None:
    for name, service in services.items():
        volumes = {volume.split(":")[0] for volume in service.get("volumes", [])}
        assert {each for each in volumes if not each.startswith("./")} <= set(BASE["volumes"])
        assert all((ROOT / each).is_dir() for each in volumes if each.startswith("./"))
        assert set(service.get("secrets", [])) <= set(BASE["secrets"])
        assert set(service["networks"]) <= set(BASE["networks"])
        secret = [k for k in service.get("environment", {}) if re.search("PASSWORD|API_KEY", k)]
        plain = {key for key in secret if not key.endswith("_FILE")}
        assert plain <= {"WANDB_API_KEY", "WEIR_JUDGE_API_KEY"}, name  # of other people's services
        files = {key: service["environment"][key] for key in secret if key not in plain}
        assert {Path(file).name for file in files.values()} <= set(service.get("secrets", [])), name


@every_stack
def test_every_variable_of_a_container_is_read_there(services: dict[str, Any]) -> None:
    for name, service in ours(services).items():
        known = read_by(f"services/{name.partition('-')[0]}", "services/chassis", "deploy", "weir")
        given = {key.removesuffix("_FILE") for key in service["environment"]}
        assert {key for key in given if key.startswith("WEIR_")} <= known, name


@pytest.mark.parametrize("name", SERVICES)
def test_every_variable_that_the_code_reads_reaches_it(name: str) -> None:
    service = STACKS["gpu-2.yml"][name]  # the base leaves out WEIR_GPUS
    given = {key.removesuffix("_FILE") for key in service["environment"]}
    asked = read_by(f"services/{name}", "services/chassis") - NOT_OF_CONTAINERS
    assert {key for key in asked if OF_ONE.get(key, name) == name} <= given


def test_every_variable_of_a_person_is_documented() -> None:
    text = "\n".join(path.read_text() for path in DOCUMENTS)
    for match in VARIABLE.finditer(BASE_TEXT + "".join(TEXTS.values())):
        assert f"`{match[1]}" in text or f"{match[1]}=" in text, match[1]


@pytest.mark.parametrize("name", SERVICES)
def test_what_a_person_leaves_open_is_left_to_the_code(name: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("p@ss word\n")
    tracker = {k: str(v) for k, v in stack()["trackers"]["environment"].items()}
    found = find_stack(tracker | {"WEIR_API_KEY_FILE": str(secret)})
    assert (found.url, found.api_key) == ("http://gateway:8000", "p@ss word")
    given = stack()[name]["environment"]
    files = {key: str(secret) for key in given if key.endswith("_FILE")}
    environment = {key: str(value or "") for key, value in given.items()} | files
    deployment = Deployment.from_environment(environment)
    assert deployment.redis_url == "redis://:p%40ss%20word@redis:6379/0"
    assert deployment.api_keys == (("p@ss word",) if name == "gateway" else ())
    assert (deployment.model_hub, deployment.heartbeat_s) == (False, 1.0)
    assert deployed_judges(environment) == {}
    assert Settings.from_environment(environment) == Settings.from_environment({})
    model = Model(path="m")
    assert EngineSettings.from_environment(model, environment) == (
        EngineSettings.from_environment(model, {})
    )


@every_stack
def test_weights_travel_through_memory(services: dict[str, Any]) -> None:
    assert BASE["volumes"]["weights"]["driver_opts"]["type"] == "tmpfs"
    mounting = {n for n, s in services.items() if "weights:/data/weights" in s.get("volumes", [])}
    assert mounting == {name for name in services if name.startswith(("learner", "rollout"))}


def test_prometheus_finds_what_runs_and_grafana_shows_it() -> None:
    jobs = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())["scrape_configs"]
    looked_up = [sd for job in jobs for sd in job.get("dns_sd_configs", [])]
    names = {name for sd in looked_up for name in sd["names"]}
    assert names == {*SERVICES, "dcgm-exporter"}
    assert "redis-exporter:9121" in str(jobs)
    for services in STACKS.values():
        for name, service in ours(services).items():
            assert service["environment"]["WEIR_METRICS_PORT"] == str(looked_up[0]["port"])
            networks = service["networks"]
            aliases = networks["inside"]["aliases"] if isinstance(networks, dict) else []
            assert names & {name, *aliases}, name  # every engine answers to `rollout`
    provisioning, grafana = ROOT / "deploy/grafana/provisioning", stack()["grafana"]
    source = yaml.safe_load((provisioning / "datasources/prometheus.yml").read_text())
    assert source["datasources"][0]["url"] == "http://prometheus:9090"
    provider = yaml.safe_load((provisioning / "dashboards/weir.yml").read_text())["providers"][0]
    inside = provider["options"]["path"]
    assert f"./deploy/grafana/dashboards:{inside}:ro" in grafana["volumes"]
    home = grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (ROOT / "deploy/grafana/dashboards" / home.removeprefix(f"{inside}/")).exists()
    for path in (ROOT / "deploy/grafana/dashboards").glob("*.json"):
        assert f'"value": "{source["datasources"][0]["uid"]}"' in path.read_text(), path.name


@pytest.mark.parametrize(
    ("service", "program", "variables", "expected"),
    [
        ("learner", "python3", {"WEIR_LEARNER_RANKS": "1"}, "-m services.learner"),
        (
            "learner",
            "python3",
            {"WEIR_LEARNER_RANKS": "3"},
            "-m torch.distributed.run --standalone --nproc-per-node 3 -m services.learner",
        ),
        ("trackers", "weir", {}, "track --all --to tensorboard:/cache/tensorboard"),
        ("trackers", "weir", {"WEIR_TRACK": "a:b wandb:c"}, "track --all --to a:b --to wandb:c"),
    ],
)
def test_a_command_in_a_shell_starts_what_the_variables_say(
    service: str, program: str, variables: dict[str, str], expected: str, tmp_path: Path
) -> None:
    (tmp_path / program).write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / program).chmod(0o755)
    described = stack()[service]
    given = {key: str(value or "") for key, value in described["environment"].items()} | variables
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = [word.replace("$$", "$") for word in described["command"]]
    done = subprocess.run(command, env=given | path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected


def test_secrets_are_made_once_and_closed_to_others(tmp_path: Path) -> None:
    files = {name: tmp_path / secret["file"] for name, secret in BASE["secrets"].items()}
    contents: list[set[str]] = []
    for _ in range(2):
        command = ["make", "-s", "-f", str(ROOT / "Makefile"), "secrets"]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
        contents.append({path.read_text() for path in files.values()})
    assert contents[0] == contents[1]
    assert len(contents[0]) == len(files)
    assert all(re.fullmatch(r"[0-9a-f]{48}", text) for text in contents[0])
    assert stat.S_IMODE((tmp_path / "secrets").stat().st_mode) == 0o700


@pytest.mark.parametrize("number", [1, 2, 4, 8])
def test_the_files_for_gpus_are_what_the_command_writes(
    number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compose.main([str(number)], {}) == 0
    assert capsys.readouterr().out == TEXTS[f"gpu-{number}.yml"]


@pytest.mark.parametrize("name", TEXTS)
def test_containers_see_the_gpus_that_the_placement_gives_them(name: str) -> None:
    services = STACKS[name]
    placement = parse(TEXTS[name].splitlines()[0].removeprefix("# "))
    engines = [service for key, service in services.items() if key.startswith("rollout")]
    engines.sort(key=gpus_of)
    for bundle, engine in zip(placement.rollouts, engines, strict=True):
        assert gpus_of(engine) == [str(gpu.index) for gpu in bundle.gpus]
        environment = engine["environment"]
        assert environment["WEIR_ROLLOUT_TENSOR_PARALLEL_SIZE"] == str(len(bundle.gpus))
        memory = environment["WEIR_ROLLOUT_GPU_MEMORY"] or None
        assert memory == (bundle.share and f"{bundle.share:g}")
    learner = services["learner"]
    assert len(gpus_of(learner)) == placement.num_ranks
    assert learner["environment"]["DS_ACCELERATOR"] == "cuda"
    assert parse(learner["environment"]["WEIR_GPUS"]) == placement
    assert learner["environment"]["WEIR_LEARNER_RANKS"] == str(placement.num_ranks)
    for service in [learner, *engines]:
        assert service["ulimits"] == {"memlock": -1, "stack": 64 * 2**20}
    builds = [service for service in engines if "build" in service]
    assert builds == engines[:1], "two builds of one name would collide"
    assert len({engine["image"] for engine in engines}) == 1
    assert engines[0]["build"]["args"] == {
        **stack()["rollout"]["build"]["args"],
        "BASE": compose.BASE_IMAGE,
    }


def test_a_judge_of_the_placement_has_its_gpu_and_the_graders_know_it() -> None:
    judge, on_cpu = STACKS["judged"]["judge"], stack()["judge"]["command"]
    assert "profiles" not in judge
    assert gpus_of(judge) == ["7"]
    assert judge["command"][: len(on_cpu)] == on_cpu
    assert judge["command"][-2:] == ["--gpu-memory-utilization", "0.6"]
    settings = deployed_judges(STACKS["judged"]["grader"]["environment"])[""]
    assert settings.url == "http://judge:8000/v1"
    assert settings.model in judge["command"]


def test_what_cannot_be_placed_is_refused_with_the_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert compose.main(["eight"], {"WEIR_GPUS": "learner=0 rollout=1"}) == 2
    assert compose.main([], {"WEIR_GPUS": "learner=a:0 rollout=a:1"}) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "usage" in said.err
    assert "names nodes" in said.err


def test_redis_on_a_gpu_box_has_the_memory_that_the_learner_counts_on() -> None:
    for name in TEXTS:
        for service in ("redis", "learner"):
            environment = STACKS[name][service]["environment"]
            assert environment["WEIR_REDIS_MAXMEMORY"] == compose.REDIS_MAXMEMORY


def compose_here() -> list[str]:
    """Docker Compose: what WEIR_COMPOSE names, or a program of this machine; empty if none."""
    for command in ([os.environ.get("WEIR_COMPOSE") or "docker-compose"], ["docker", "compose"]):
        if shutil.which(command[0]):
            version = subprocess.run([*command, "version"], capture_output=True, text=True)
            if version.returncode == 0 and "Docker Compose" in version.stdout:
                return command
    return []


COMPOSE = compose_here()


@pytest.mark.skipif(not COMPOSE, reason="no Docker Compose here; WEIR_COMPOSE would name it")
@pytest.mark.parametrize("name", STACKS)
def test_compose_itself_agrees(name: str, tmp_path: Path) -> None:
    shutil.copy(ROOT / "docker-compose.yml", tmp_path)
    (tmp_path / "docker-compose.override.yml").write_text(TEXTS.get(name, "services: {}"))
    asked = [*COMPOSE, "--profile", "*", "config", "--format", "json"]
    environment = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
    done = subprocess.run(asked, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["services"]
    assert set(found) == set(STACKS[name])
    for key, service in found.items():
        expected = STACKS[name][key]
        assert gpus_of(service) == gpus_of(expected), key
        given = {k: str(v or "") for k, v in (expected.get("environment") or {}).items()}
        assert (service.get("environment") or {}) == given, key
        for setting in ("image", "read_only", "cap_drop", "security_opt"):
            assert service.get(setting) == expected.get(setting), (key, setting)
