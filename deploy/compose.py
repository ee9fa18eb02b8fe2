"""Write the compose file of a machine's GPUs from a placement: ``weir compose 8 judge``.

Each container sees only its own GPUs, numbered from 0. Each engine is a service: ``rollout`` is the
first, and ``rollout-1`` and so on extend it.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence

from protocol.placement import Bundle, Placement, PlacementError, divide, gpu_variables, parse

from deploy.launches import judge_options

# The same release of vLLM as in the CPU stack.
BASE_IMAGE = "vllm/vllm-openai:v0.32.0"
# Twice the unfinished work of the largest recipe, rounded up.
REDIS_MAXMEMORY = "48gb"
_USAGE = "usage: weir compose [NUMBER OF GPUS [judge]]; by default WEIR_GPUS places the GPUs"
_JUDGE = "${WEIR_JUDGE_MODEL:-gpt-oss-20b}"

_HEAD = """\
# {placement}
# Made by `{command}`. On top of docker-compose.yml, or copied to docker-compose.override.yml.
services:
  # All services wait for Redis, and so for this check; `weir doctor --box` is the same.
  preflight:
    image: {base}
    entrypoint: [python3, /preflight.py]
    user: nobody
    environment: {{WEIR_NUM_GPUS: "{machine_gpus}", WEIR_PREFLIGHT: "${{WEIR_PREFLIGHT:-}}"}}
    read_only: ${{WEIR_READ_ONLY:-true}}
    cap_drop: [ALL]
    security_opt: ["no-new-privileges:true"]
    network_mode: none
    volumes: ["./deploy/preflight.py:/preflight.py:ro"]
    shm_size: 16gb
    deploy:
      resources:
        reservations: {{devices: [{{driver: nvidia, count: all, capabilities: [gpu]}}]}}
  redis:
    environment: {{WEIR_REDIS_MAXMEMORY: "{maxmemory}"}}
    depends_on: {{preflight: {{condition: service_completed_successfully}}}}
  learner:
    image: weir/learner-gpu
    build: {{args: {{BASE: "{base}"}}}}
    environment:
      DS_ACCELERATOR: cuda
      WEIR_LEARNER_RANKS: "{ranks}"
      WEIR_NUM_GPUS: "{num_gpus}"
      WEIR_GPUS: {placement}
{turns}      WEIR_REDIS_MAXMEMORY: "{maxmemory}"
{gpus}
  rollout:
    image: weir/rollout-gpu
    build: {{args: {{BASE: "{base}"}}}}
"""
# Another engine: uses the image of `rollout`, and is a target of Prometheus like it.
_ENGINE = """\
  rollout-{number}:
    extends: {{file: docker-compose.yml, service: rollout}}
    image: weir/rollout-gpu
    build: !reset null
    pull_policy: never
    networks: {{inside: {{aliases: [rollout]}}}}
"""
_JUDGE_SERVICE = """\
  judge:
    profiles: !reset null
    depends_on: {{preflight: {{condition: service_completed_successfully}}}}
    command: {command}
{gpus}
  grader: {{environment: {{WEIR_JUDGE_URL: "http://judge:8000/v1", WEIR_JUDGE_MODEL: "{model}"}}}}
"""
# The judge of the profile would take the GPU of another service.
_NO_JUDGE = """\
  judge: {profiles: !override [use-a-file-with-a-judge]}
"""
# NCCL needs shared memory between the GPUs of a container; pinned memory needs no limit.
_GPUS = """\
    shm_size: 16gb
    ulimits: {{memlock: -1, stack: 67108864}}
    deploy:
      resources:
        reservations:
          devices: {tag}[{{driver: nvidia, device_ids: {indices}, capabilities: [gpu]}}]"""
# Profiling metrics of GPUs need root with SYS_ADMIN.
_EXPORTER = """\
  dcgm-exporter:
    image: nvidia/dcgm-exporter:4.5.2-4.8.1-distroless
    restart: unless-stopped
    cap_drop: [ALL]
    cap_add: [SYS_ADMIN]
    security_opt: ["no-new-privileges:true"]
    networks: [inside]
    deploy:
      resources: {reservations: {devices: [{driver: nvidia, count: all, capabilities: [gpu]}]}}
"""


def write_compose_file(placement: Placement, command: str) -> str:
    """Return the file that gives each service of docker-compose.yml its GPUs."""
    if any(bundle.node for bundle in placement.bundles):
        raise PlacementError(
            f"{placement}: compose runs on one machine, but the placement names nodes; use Ray, or "
            "remove the names"
        )
    return "".join(_parts(placement, command))


def _parts(placement: Placement, command: str) -> Iterator[str]:
    (learner,) = placement.learner
    turns = gpu_variables(learner).get("WEIR_TURNS")
    yield _HEAD.format(
        placement=placement,
        command=command,
        maxmemory=f"${{WEIR_REDIS_MAXMEMORY:-{REDIS_MAXMEMORY}}}",
        base=BASE_IMAGE,
        ranks=learner.ranks,
        num_gpus=len(learner.gpus),
        machine_gpus=1 + max(gpu.index for bundle in placement.bundles for gpu in bundle.gpus),
        turns=f'      WEIR_TURNS: "{turns}"\n' if turns else "",
        gpus=_gpus(learner),
    )
    for number, engine in enumerate(placement.rollouts):
        if number:
            yield _ENGINE.format(number=number)
        # device_ids replace the variables of CUDA.
        variables = gpu_variables(engine)
        weir_variables = {name: variables[name] for name in variables if "WEIR_" in name}
        yield f"    environment: {json.dumps(weir_variables)}\n{_gpus(engine)}\n"
    judge = placement.judge
    if judge is None:
        yield _NO_JUDGE
    else:
        options = json.dumps(judge_options(judge, f"/workspace/models/{_JUDGE}", _JUDGE))
        yield _JUDGE_SERVICE.format(command=options, model=_JUDGE, gpus=_gpus(judge, "!override "))
    yield _EXPORTER


def _gpus(bundle: Bundle, tag: str = "") -> str:
    """Return the lines that reserve a bundle's GPUs; a tag may override those of the base file."""
    indices = json.dumps([str(gpu.index) for gpu in bundle.gpus])
    return _GPUS.format(indices=indices, tag=tag)


def main(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> int:
    if {"-h", "--help"} & set(arguments):
        print(_USAGE)
        return 0
    line = environment.get("WEIR_GPUS")
    match = re.fullmatch(r"([1-9]\d{0,2})( judge)?", " ".join(arguments))
    try:
        if match:
            placement = divide(int(match[1]), judge=bool(match[2]))
            command = f"weir compose {match[0]}"
        elif line and not arguments:
            placement = parse(line)
            command = f"WEIR_GPUS='{placement}' weir compose"
        else:
            raise PlacementError(_USAGE)
        text = write_compose_file(placement, command)
    except PlacementError as error:
        print(f"weir: {error}", file=sys.stderr)
        return 2
    print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
