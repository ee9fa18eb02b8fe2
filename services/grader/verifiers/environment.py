"""The reward of an episode: what its environment gave."""

from __future__ import annotations

from protocol.messages import Graded, Score, Task, Ungradable
from protocol.rewards import EnvironmentReward

from services.grader.tools import Tools
from services.grader.trial_record import record_failure


async def verify(task: Task, text: str, check: EnvironmentReward, tools: Tools) -> Score:
    episode, (lowest, highest) = tools.episode, check.range
    if episode is None or episode.reward is None:
        record_failure("no_episode", "only a job's environment gives this reward")
        return Ungradable(reason="no_episode")
    if not lowest <= episode.reward <= highest:
        return Ungradable(reason="reward_out_of_range")
    return Graded(value=(episode.reward - lowest) / (highest - lowest))
