"""What a GPU box adds to docker-compose.yml, written from a placement: ``weir compose 8 judge``.

Each container sees its own GPUs and no others, so there they count from 0. An engine is a service
of its own: ``rollout`` is the first, and ``rollout-1`` and so on extend it. Pure, but for `main`.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence

from protocol.placement import Bundle, Placement, PlacementError, divide, environment_of, parse

from deploy.launches import judge_options

BASE_IMAGE = "vllm/vllm-openai:v0.32.0"  # the vLLM of the CPU stack
REDIS_MAXMEMORY = "48gb"  # twice the largest recipe's work under way, rounded up
_USAGE = "usage: weir compose [NUMBER OF GPUS [judge]]; without, WEIR_GPUS says who has which"
_JUDGE = "${WEIR_JUDGE_MODEL:-gpt-oss-20b}"

_HEAD = """\
# {placement}
# Made by `{how}`. On top of docker-compose.yml, or copied to docker-compose.override.yml.
services:
  redis: {{environment: {{WEIR_REDIS_MAXMEMORY: "{maxmemory}"}}}}
  learner:
    image: weir/learner-gpu
    build: {{args: {{BASE: "{base}"}}}}
    environment:
      DS_ACCELERATOR: cuda
      WEIR_LEARNER_RANKS: "{ranks}"
      WEIR_GPUS: {placement}
{turns}      WEIR_REDIS_MAXMEMORY: "{maxmemory}"
{gpus}
  rollout:
    image: weir/rollout-gpu
    build: {{args: {{BASE: "{base}"}}}}
"""
# One more engine: the image that `rollout` builds, and a target of Prometheus like it.
_FURTHER = """\
  rollout-{number}:
    extends: {{file: docker-compose.yml, service: rollout}}
    image: weir/rollout-gpu
    build: !reset null
    pull_policy: never
    networks: {{inside: {{aliases: [rollout]}}}}
"""
_OF_JUDGE = """\
  judge:
    profiles: !reset null
    command: {command}
{gpus}
  grader: {{environment: {{WEIR_JUDGE_URL: "http://judge:8000/v1", WEIR_JUDGE_MODEL: "{model}"}}}}
"""
# The profile's judge would take a GPU that another has.
_NO_JUDGE = """\
  judge: {profiles: !override [use-a-file-with-a-judge]}
"""
# NCCL needs shared memory between the GPUs of a container; pinned memory has no bound.
_GPUS = """\
    shm_size: 16gb
    ulimits: {{memlock: -1, stack: 67108864}}
    deploy:
      resources:
        reservations:
          devices: {replacing}[{{driver: nvidia, device_ids: {indices}, capabilities: [gpu]}}]"""
# The GPUs' metrics; those of profiling need root with SYS_ADMIN.
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


def written(placement: Placement, how: str) -> str:
    """The compose file that, on top of docker-compose.yml, gives each service its GPUs."""
    if any(bundle.node for bundle in placement.bundles):
        raise PlacementError(
            f"{placement}: compose runs on one machine, and this names nodes; use Ray for several, "
            "or leave out the names"
        )
    return "".join(_parts(placement, how))


def _parts(placement: Placement, how: str) -> Iterator[str]:
    (learner,) = placement.learner
    fixed = {"maxmemory": f"${{WEIR_REDIS_MAXMEMORY:-{REDIS_MAXMEMORY}}}", "base": BASE_IMAGE}
    turns = environment_of(learner).get("WEIR_TURNS")
    bundle = {"ranks": learner.ranks, "gpus": _gpus(learner)}
    bundle["turns"] = f'      WEIR_TURNS: "{turns}"\n' if turns else ""
    yield _HEAD.format(placement=placement, how=how, **fixed, **bundle)
    for number, engine in enumerate(placement.rollouts):
        if number:
            yield _FURTHER.format(number=number)
        # What CUDA may see is settled by device_ids.
        own = {name: text for name, text in environment_of(engine).items() if "WEIR_" in name}
        yield f"    environment: {json.dumps(own)}\n{_gpus(engine)}\n"
    if judge := placement.judge:
        command = json.dumps(judge_options(judge, f"/workspace/models/{_JUDGE}", _JUDGE))
        yield _OF_JUDGE.format(command=command, model=_JUDGE, gpus=_gpus(judge, "!override "))
    else:
        yield _NO_JUDGE
    yield _EXPORTER


def _gpus(bundle: Bundle, replacing: str = "") -> str:
    """What reserves a bundle's GPUs, in place of the base's or after them."""
    indices = json.dumps([str(gpu.index) for gpu in bundle.gpus])
    return _GPUS.format(indices=indices, replacing=replacing)


def main(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> int:
    line = environment.get("WEIR_GPUS")
    try:
        if match := re.fullmatch(r"([1-9]\d{0,2})( judge)?", " ".join(arguments)):
            placement = divide(int(match[1]), judge=bool(match[2]))
            text = written(placement, f"weir compose {match[0]}")
        elif line and not arguments:
            placement = parse(line)
            text = written(placement, f"WEIR_GPUS='{placement}' weir compose")
        else:
            raise PlacementError(_USAGE)
    except PlacementError as error:
        print(f"weir: {error}", file=sys.stderr)
        return 2
    print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
