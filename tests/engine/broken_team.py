"""Two ranks, of which rank 0 fails in a training step with the next order already waiting."""

import asyncio
import os
import sys
import time
from typing import NoReturn

import torch

from services.learner.training.engine import init_ranks
from services.learner.training.measured import Measured
from services.learner.training.ranks import Order, Rank, Team


class FailingRank(Rank):
    """Trains by one collective, which rank 0 never reaches."""

    def carry_out(self, order: Order) -> Measured:
        if order.do == "train":
            if os.environ["RANK"] == "0":
                time.sleep(0.5)
                raise MemoryError("rank 0 failed")
            torch.distributed.all_reduce(torch.zeros(1))
        return Measured()


async def lead() -> None:
    team = Team()
    team._rank = FailingRank()
    training = asyncio.create_task(team.train([]))
    await asyncio.sleep(0.1)
    waiting = asyncio.create_task(team._give(Order(do="idle")))
    failures = await asyncio.gather(training, waiting, return_exceptions=True)
    print([type(failure).__name__ for failure in failures], flush=True)
    sys.exit(1)


def main() -> NoReturn:
    init_ranks()
    if os.environ["RANK"] == "0":
        asyncio.run(lead())
    FailingRank().follow()
    sys.exit("the other rank was let go")


if __name__ == "__main__":
    main()
