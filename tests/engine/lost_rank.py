"""Two ranks, of which rank 1 is killed in the middle of a training step."""

import asyncio
import os
import signal
import sys

import torch

from services.learner.training.engine import init_ranks
from services.learner.training.measured import Measured
from services.learner.training.ranks import Order, Rank, Team, TeamBroken


class MortalRank(Rank):
    """Trains by one collective, which rank 1 never reaches."""

    def carry_out(self, order: Order) -> Measured:
        if order.do == "train":
            if os.environ["RANK"] == "1":
                os.kill(os.getpid(), signal.SIGKILL)
            torch.distributed.all_reduce(torch.zeros(1))
        return Measured()


async def lead() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # of torchrun, which sees it too
    team = Team()
    team._rank = MortalRank()
    try:
        await team.train([])
    except TeamBroken as error:
        print(error, flush=True)
    sys.exit(1)


if __name__ == "__main__":
    init_ranks()
    if os.environ["RANK"] == "0":
        asyncio.run(lead())
    MortalRank().follow()
