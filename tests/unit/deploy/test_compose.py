"""The compose files: locked down, wired as the code expects, each GPU where the placement has it.
No container is started."""

import json
import os
import re
import shutil
import stat
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from protocol.placement import parse
from protocol.recipe import Model

from deploy import compose
from deploy import preflight as preflight_module
from deploy.local import USERS, render_users
from services.chassis.deployment import Deployment
from services.chassis.secret_variables import is_secret
from services.chassis.security import ALLOWANCES
from services.grader.judge.settings import deployed_judges
from services.grader.tools import Settings
from services.rollout.settings import EngineSettings
from tests.architecture.project import DOCUMENTS
from tests.tables import table
from weir.stack import find_stack

ROOT = Path(__file__).parents[3]
SERVICES = ("gateway", "grader", "rollout", "learner", "environment")
JUDGED = "learner=0-3 rollout=4-5 rollout=6@0.5 judge=7@0.6"
BASE_TEXT = (ROOT / "docker-compose.yml").read_text()
GPU_TEXTS = {path.name: path.read_text() for path in (ROOT / "deploy/compose").glob("*.yml")}
GPU_TEXTS["judged"] = compose.write_compose_file(parse(JUDGED), "a test")
VARIABLE = re.compile(r"\$\{(\w+)(?::-((?:[^}]|\}(?=\}))*?)|:\+[^}]*)?\}")
OF_ONE = {  # the chassis reads it for all
    "WEIR_API_KEYS": "gateway",
    "WEIR_EXTENSIONS": "learner",
    "WEIR_KEEP_SAMPLES_BYTES": "learner",
    "WEIR_KEEP_SAMPLES_DAYS": "learner",
    "WEIR_TRUSTED_PROXIES": "gateway",
    "WEIR_WEIGHTS": "learner",
}
OF_AGENTS = {"WEIR_MAX_TURNS", "WEIR_SEED", "WEIR_SESSION_API_KEY", "WEIR_TASK"}
OF_PLACEMENTS = {"WEIR_NUM_GPUS", "WEIR_ROLLOUTS", "WEIR_TURNS"}
NOT_OF_CONTAINERS = OF_AGENTS | OF_PLACEMENTS | {"WEIR_API_KEY", "WEIR_HOME"}


class Loader(yaml.SafeLoader):
    """Reads what compose resets as None, and a list that replaces another as it is."""


Loader.add_constructor(
    "!override",
    lambda loader, node: loader.construct_sequence(node, deep=True),  # type: ignore[arg-type]
)
Loader.add_constructor("!reset", lambda loader, node: None)


def read(text: str) -> dict[str, Any]:
    """A file as a person has it who has set no variable."""
    return yaml.load(VARIABLE.sub(lambda match: match[2] or "", text), Loader=Loader)


BASE = read(BASE_TEXT)
CONTAINERS: dict[str, dict[str, Any]] = BASE["services"]
ON_GPUS = {name: read(text)["services"] for name, text in GPU_TEXTS.items()}


def container_environment(name: str) -> dict[str, str]:
    """A container's variables, as nobody has changed them."""
    return {key: str(value or "") for key, value in CONTAINERS[name]["environment"].items()}


def gpu_indices(service: dict[str, Any]) -> list[str]:
    devices = service["deploy"]["resources"]["reservations"]["devices"]
    return [gpu for device in devices for gpu in device.get("device_ids", [])]


def variables_read(*folders: str) -> set[str]:
    """The variables that the code in these folders reads."""
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return {name for path in paths for name in re.findall(r'"(WEIR_[A-Z_]+)"', path.read_text())}


def test_containers_may_do_little() -> None:
    published = {
        name: service["ports"] for name, service in CONTAINERS.items() if "ports" in service
    }
    assert published == {"gateway": ["8000:8000"], "grafana": ["127.0.0.1:3000:3000"]}
    assert BASE["networks"]["inside"]["internal"] is True
    outside = {name for name, service in CONTAINERS.items() if "edge" in service["networks"]}
    assert outside == {"gateway", "grader", "learner", "grafana", "trackers", "environment"}
    exporter = {"dcgm-exporter": ON_GPUS["judged"]["dcgm-exporter"]}
    for name, service in (CONTAINERS | exporter).items():
        assert "inside" in service["networks"], name
        assert "no-new-privileges:true" in service["security_opt"], name
        if name not in {"judge", "dcgm-exporter"}:  # these run as root
            locked = (service["read_only"], service["cap_drop"], service.get("cap_add"))
            assert locked == (True, ["ALL"], None), name
        pinned = r"weir/.*|[^.]+?(/.*)?:.*\d+\.\d+.*"  # named without a host
        assert re.fullmatch(pinned, service["image"]), name


@pytest.mark.parametrize("name", CONTAINERS)
def test_what_a_container_mounts_is_declared_and_no_secret_is_a_variable(name: str) -> None:
    service = CONTAINERS[name]
    for volume in service.get("volumes", []):
        source = volume.split(":")[0]
        assert (ROOT / source).exists() if source.startswith("./") else source in BASE["volumes"]
    secrets = set(service.get("secrets", []))
    assert secrets <= set(BASE["secrets"])
    variables = {key: str(text) for key, text in service.get("environment", {}).items()}
    assert not {key for key, text in variables.items() if is_secret(key, text)}
    files = {text for key, text in variables.items() if key.endswith("_FILE")}
    assert {Path(file).name for file in files if file not in ("", "None")} <= secrets


def holders(kind: str, item: str) -> set[str]:
    return {name for name, service in CONTAINERS.items() if item in service.get(kind, ())}


def test_a_secret_and_the_weights_are_for_those_who_need_them() -> None:
    of_two = {"api_keys": {"gateway", "trackers"}, "environment_key": {"gateway", "environment"}}
    for secret in BASE["secrets"]:
        if secret in of_two:
            assert holders("secrets", secret) == of_two[secret], "a tracker is a client"
        else:
            assert len(holders("secrets", secret) - {"redis"}) <= 1, secret
    assert BASE["volumes"]["weights"]["driver_opts"]["type"] == "tmpfs"
    assert holders("volumes", "weights:/data/weights") == {"learner", "rollout"}


@pytest.mark.parametrize("name", SERVICES)
def test_a_container_has_the_variables_that_its_code_reads_and_no_others(name: str) -> None:
    variables = {key.removesuffix("_FILE") for key in CONTAINERS[name]["environment"]}
    variables |= {"WEIR_GPUS"} if name == "learner" else set()
    documented = variables_read(f"services/{name}", "services/chassis", "proto", "deploy", "weir")
    assert {key for key in variables if key.startswith("WEIR_")} <= documented
    in_deployment = set(re.findall(r"WEIR_MODEL_\w+", " ".join(ALLOWANCES)))
    listed = set(ALLOWANCES) - variables_read(f"services/{name}") - in_deployment
    required = variables_read(f"services/{name}", "services/chassis") - NOT_OF_CONTAINERS - listed
    assert {key for key in required if OF_ONE.get(key, name) == name} <= variables


def test_every_variable_of_a_person_is_documented() -> None:
    text = "\n".join(path.read_text() for path in DOCUMENTS)
    for match in VARIABLE.finditer(BASE_TEXT + "".join(GPU_TEXTS.values())):
        assert f"`{match[1]}" in text or f"{match[1]}=" in text, match[1]


@pytest.mark.parametrize("name", SERVICES)
def test_what_a_person_leaves_open_is_left_to_the_code(name: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("p@ss word\n")
    trackers = container_environment("trackers")
    client_stack = find_stack(trackers | {"WEIR_API_KEY_FILE": str(secret)})
    assert (client_stack.url, client_stack.api_key) == ("http://gateway:8000", "p@ss word")
    environment = container_environment(name)
    for key, text in environment.items():
        if key.endswith("_FILE") and text:
            environment[key] = str(secret)
    deployment = Deployment.from_environment(environment)
    assert deployment.redis_url == f"redis://{name}:p%40ss%20word@redis:6379/0"
    assert deployment.api_keys == (("p@ss word",) if name == "gateway" else ())
    assert deployment.umask == 0o007, "the group of the data may write"
    assert (deployment.model_hub, deployment.heartbeat_s) == (False, 1.0)
    assert deployed_judges(environment) == {}
    for read in (
        Settings.from_environment,
        partial(EngineSettings.from_environment, Model(path="m")),
    ):
        assert read(environment) == read({})


def run_shell(command: list[str], *changes: tuple[str, str], **options: Any) -> str:
    """Run a container's command, of which the last word is a script, with changes of that."""
    *words, script = command
    for old, new in (("$$", "$"), *changes):
        script = script.replace(old, new)
    return subprocess.check_output([*words, script], text=True, **options)


def test_redis_has_the_users_of_a_stack_of_processes(tmp_path: Path) -> None:
    passwords = {name: f"{name} #'s" for name in ("default", *USERS)}
    for name, password in passwords.items():
        file = "redis_password" if name == "default" else f"redis_{name}"
        (tmp_path / file).write_text(password)
        assert file in CONTAINERS["redis"]["secrets"]
    *words, script = CONTAINERS["redis"]["command"]
    script = re.sub(": --save .* <<", "cat <<", script.replace("exec redis-server", ":"))
    folders = ("/run/secrets", str(tmp_path)), ("/etc/weir", f"{ROOT}/deploy")
    output = run_shell([*words, script], *folders)
    assert output.splitlines() == render_users(passwords).splitlines()
    for name in SERVICES:
        of_redis = {secret for secret in CONTAINERS[name]["secrets"] if secret.startswith("redis_")}
        assert of_redis == {f"redis_{name}"}


OF_OTHERS = {
    "grader": {"WEIR_JUDGE_API_KEY_FILE": "judge_api_key", "WEIR_JUDGES_FILE": "judges"},
    "learner": {"HF_TOKEN_FILE": "hf_token"},
    "trackers": {"WANDB_API_KEY_FILE": "wandb_api_key"},
}


@pytest.mark.parametrize("name", OF_OTHERS)
def test_a_secret_of_others_is_a_file_that_a_person_may_name(name: str) -> None:
    for variable, secret in OF_OTHERS[name].items():
        line = f"{variable}: ${{{variable}:+/run/secrets/{secret}}}\n"
        assert line in BASE_TEXT
        assert f'{secret}: {{file: "${{{variable}:-/dev/null}}"}}\n' in BASE_TEXT
        assert secret in CONTAINERS[name]["secrets"]
        assert container_environment(name)[variable] == ""


def test_the_exporter_of_redis_reads_its_password_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "redis_monitor").write_text("p455")
    exporter = CONTAINERS["redis-exporter"]
    places = ("/tmp/", f"{tmp_path}/"), ("/run/secrets", str(tmp_path))
    output = run_shell(
        ["sh", "-c", exporter["entrypoint"][2]], *places, ("/redis_exporter", "echo")
    )
    assert output == f"-redis.password-file {tmp_path}/passwords\n"
    server = exporter["environment"]["REDIS_ADDR"].removeprefix("redis://")
    user = exporter["environment"]["REDIS_USER"]
    passwords = json.loads((tmp_path / "passwords").read_text())
    assert passwords == {f"redis://{user}@{server}": "p455"}


def test_prometheus_finds_what_runs_and_grafana_shows_it() -> None:
    jobs = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())["scrape_configs"]
    looked_up = [config for job in jobs for config in job.get("dns_sd_configs", [])]
    names = {name for config in looked_up for name in config["names"]}
    assert names == {*SERVICES, "dcgm-exporter"}
    assert "redis-exporter:9121" in str(jobs)
    for name in SERVICES:
        assert container_environment(name)["WEIR_METRICS_PORT"] == str(looked_up[0]["port"])
    provisioning = ROOT / "deploy/grafana/provisioning"
    source = yaml.safe_load((provisioning / "datasources/prometheus.yml").read_text())
    (prometheus,) = source["datasources"]
    assert prometheus["url"] == "http://prometheus:9090"
    provider = yaml.safe_load((provisioning / "dashboards/weir.yml").read_text())["providers"][0]
    mount = f"./deploy/grafana/dashboards:{provider['options']['path']}:ro"
    assert mount in CONTAINERS["grafana"]["volumes"]
    for path in (ROOT / "deploy/grafana/dashboards").glob("*.json"):
        assert f'"value": "{prometheus["uid"]}"' in path.read_text(), path.name


RANKS = "-m torch.distributed.run --standalone --nproc-per-node 3 -m services.learner"


@table(
    """
    service  | variables                     | expected
    learner  | {"WEIR_LEARNER_RANKS": "1"}   | -m services.learner
    trackers | {}                            | track --all --to tensorboard:/cache/tensorboard
    trackers | {"WEIR_TRACK": "a:b wandb:c"} | track --all --to a:b --to wandb:c
""",
    ("learner", {"WEIR_LEARNER_RANKS": "3"}, RANKS),
)
def test_a_command_in_a_shell_starts_what_the_variables_say(
    service: str, variables: dict[str, str], expected: str, tmp_path: Path
) -> None:
    for program in ("python3", "weir"):
        (tmp_path / program).write_text('#!/bin/sh\necho "$@"\n')
        (tmp_path / program).chmod(0o755)
    environment = container_environment(service) | variables
    environment["PATH"] = f"{tmp_path}:{os.environ['PATH']}"
    assert run_shell(CONTAINERS[service]["command"], env=environment).strip() == expected


def test_secrets_are_made_once_and_closed_to_others(tmp_path: Path) -> None:
    paths = [secret["file"] for secret in BASE["secrets"].values()]
    files = [tmp_path / path for path in paths if path != "/dev/null"]
    contents: list[set[str]] = []
    for _ in range(2):
        command = ["make", "-s", "-f", str(ROOT / "Makefile"), "secrets"]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
        contents.append({path.read_text() for path in files})
    assert contents[0] == contents[1]
    assert len(contents[0]) == len(files)
    assert all(re.fullmatch(r"[0-9a-f]{48}", text) for text in contents[0])
    assert stat.S_IMODE((tmp_path / "secrets").stat().st_mode) == 0o700


@pytest.mark.parametrize("number", ["1", "2", "4", "8"])
@pytest.mark.parametrize("judge", [[], ["judge"]])
def test_the_files_for_gpus_are_what_the_command_writes(
    number: str, judge: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert compose.main([number, *judge], {}) == 0
    assert capsys.readouterr().out == GPU_TEXTS[f"gpu-{'-'.join([number, *judge])}.yml"]


@pytest.mark.parametrize("name", GPU_TEXTS)
def test_containers_see_the_gpus_that_the_placement_gives_them(name: str) -> None:
    services = ON_GPUS[name]
    placement = parse(GPU_TEXTS[name].splitlines()[0].removeprefix("# "))
    engines = [service for key, service in services.items() if key.startswith("rollout")]
    for bundle, engine in zip(placement.rollouts, engines, strict=True):
        assert gpu_indices(engine) == [str(gpu.index) for gpu in bundle.gpus]
        num_gpus = str(len(bundle.gpus))
        variables = {"WEIR_NUM_GPUS": num_gpus, "WEIR_ROLLOUT_TENSOR_PARALLEL_SIZE": num_gpus}
        if bundle.share:
            variables["WEIR_ROLLOUT_GPU_MEMORY"] = f"{bundle.share:g}"
        if bundle.turns:
            variables["WEIR_TURNS"] = services["learner"]["environment"]["WEIR_TURNS"]
        assert engine["environment"] == variables
        assert engine["image"] == "weir/rollout-gpu"
    first, *further_engines = engines
    assert first["build"]["args"] == {"BASE": compose.BASE_IMAGE}
    # Two builds of one name would collide; Prometheus looks up `rollout`.
    for engine in further_engines:
        assert (engine["build"], engine["pull_policy"]) == (None, "never")
        assert engine["networks"]["inside"]["aliases"] == ["rollout"]
    learner = services["learner"]
    assert len(gpu_indices(learner)) == placement.num_ranks
    variables = learner["environment"]
    assert parse(variables["WEIR_GPUS"]) == placement
    assert variables["WEIR_LEARNER_RANKS"] == str(placement.num_ranks)
    assert variables["WEIR_NUM_GPUS"] == str(placement.num_ranks)
    if placement.judge:
        assert gpu_indices(services["judge"]) == [str(gpu.index) for gpu in placement.judge.gpus]
    else:  # the profile would give it a GPU that another has
        assert "judge" not in services["judge"]["profiles"]
    redis = services["redis"]["environment"]["WEIR_REDIS_MAXMEMORY"]
    assert variables["WEIR_REDIS_MAXMEMORY"] == redis == compose.REDIS_MAXMEMORY


@pytest.mark.parametrize("name", GPU_TEXTS)
def test_nothing_starts_before_the_machine_is_checked(name: str) -> None:
    services = ON_GPUS[name]
    preflight = services["preflight"]
    finished = {"preflight": {"condition": "service_completed_successfully"}}
    assert services["redis"]["depends_on"] == finished
    others = services.keys() - {"preflight", "redis", "dcgm-exporter", "judge", "grader"}
    assert all("redis" in CONTAINERS[key.split("-")[0]]["depends_on"] for key in others)
    if services["judge"].get("command"):
        assert services["judge"]["depends_on"] == finished
    placement = parse(GPU_TEXTS[name].splitlines()[0].removeprefix("# "))
    indices = [gpu.index for bundle in placement.bundles for gpu in bundle.gpus]
    assert preflight["environment"]["WEIR_NUM_GPUS"] == str(max(indices) + 1)
    assert preflight["image"] == compose.BASE_IMAGE, "which the others have anyway"
    (volume,) = preflight["volumes"]
    assert (ROOT / volume.split(":")[0]).samefile(preflight_module.__file__)
    assert volume.split(":")[1] == preflight["entrypoint"][1]
    locked = (preflight["user"], preflight["read_only"], preflight["cap_drop"])
    assert locked == ("nobody", True, ["ALL"])
    assert preflight["network_mode"] == "none"


def test_a_variable_makes_the_root_of_containers_with_gpus_writable() -> None:
    text = BASE_TEXT.replace("${WEIR_READ_ONLY:-true}", "false")
    services = read(text)["services"]
    writable = {name for name in services if services[name].get("read_only") is False}
    assert writable == {"rollout", "learner"}
    for text in GPU_TEXTS.values():
        assert text.count("read_only: ${WEIR_READ_ONLY:-true}") == text.count("read_only") == 1


def test_a_judge_of_the_placement_has_its_gpu_and_the_graders_know_it() -> None:
    judge = ON_GPUS["judged"]["judge"]
    on_cpu = CONTAINERS["judge"]["command"]
    assert judge["profiles"] is None
    assert judge["command"][: len(on_cpu)] == on_cpu
    assert judge["command"][-2:] == ["--gpu-memory-utilization", "0.6"]
    settings = deployed_judges(ON_GPUS["judged"]["grader"]["environment"])[""]
    assert settings.url == "http://judge:8000/v1"
    assert settings.model in judge["command"]


def test_what_cannot_be_placed_is_refused_with_the_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert compose.main(["eight"], {"WEIR_GPUS": "learner=0 rollout=1"}) == 2
    assert compose.main([], {"WEIR_GPUS": "learner=a:0 rollout=a:1"}) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert "usage" in output.err
    assert "names nodes" in output.err


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
@pytest.mark.parametrize("name", GPU_TEXTS)
def test_compose_itself_puts_the_files_together(name: str, tmp_path: Path) -> None:
    shutil.copy(ROOT / "docker-compose.yml", tmp_path)
    (tmp_path / "docker-compose.override.yml").write_text(GPU_TEXTS[name])
    command = [*COMPOSE, "--profile", "*", "config", "--format", "json"]
    environment = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    services = json.loads(done.stdout)["services"]
    assert set(services) == CONTAINERS.keys() | ON_GPUS[name].keys()
    for key, service in ON_GPUS[name].items():
        if "device_ids" in str(service):
            assert gpu_indices(services[key]) == gpu_indices(service)
        if key.startswith("rollout"):
            assert ("build" in services[key]) == (key == "rollout")
            assert services[key]["cap_drop"] == ["ALL"]
            assert "weights" in {volume["source"] for volume in services[key]["volumes"]}
