"""``python -m services.learner``, or ``torchrun -m services.learner`` for several ranks."""

from __future__ import annotations

import os
import signal
import sys

from services.chassis.deployment import DeploymentError
from services.chassis.parent import die_with_parent
from services.chassis.renderer import PromptRenderer
from services.chassis.service import Service, check_server, prepare_process, run_service
from services.chassis.turns import Turns

os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
# Micro-batches differ in length, which fragments the memory of a GPU.
os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")


async def lead(service: Service) -> None:
    from services.learner.job.role import work_on_one_job
    from services.learner.training.engine import leave_ranks
    from services.learner.training.ranks import Team

    service.saves_work = True
    await check_server(service.exchange)
    team = Team(Turns(service))
    async with PromptRenderer(workers=1) as prompts:
        await work_on_one_job(service, team, prompts)
    # A busy team still works on an order that rank 0 has given up.
    if team.is_busy:
        return team.abandon()
    # If the lines above raise, this process ends, and torchrun ends the other ranks.
    await team.leave()
    leave_ranks()


def main() -> None:
    if "TORCHELASTIC_RUN_ID" in os.environ:
        # torchrun gives each rank its own session, so a signal to torchrun's group misses it.
        # The imports below take seconds, and torchrun may die meanwhile.
        die_with_parent()
    deployment = prepare_process("learner")
    from services.learner.training.engine import init_ranks, leave_ranks
    from services.learner.training.ranks import Rank

    try:
        deployment.load_extensions()
    except DeploymentError as error:
        sys.exit(f"learner: {error}")
    init_ranks()
    if int(os.environ.get("RANK", "0")) == 0:
        run_service("learner", lead)
    else:
        # On a stop rank 0 saves a checkpoint with the other ranks, and ends them afterwards.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        Rank().follow()
        leave_ranks()


if __name__ == "__main__":
    main()
