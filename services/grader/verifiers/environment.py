"""The reward that an environment gave to an episode."""

from __future__ import annotations

from protocol.messages import Graded, Score, Task, Ungradable
from protocol.rewards import EnvironmentReward

from services.grader.tools import Tools
from services.grader.trial_record import record_failure


async def verify(task: Task, text: str, check: EnvironmentReward, tools: Tools) -> Score:
    episode = tools.episode
    low, high = check.range
    if episode is None or episode.reward is None:
        record_failure("no_episode", "only the environment of a job gives this reward")
        return Ungradable(reason="no_episode")
    if not low <= episode.reward <= high:
        return Ungradable(reason="reward_out_of_range")
    value = (episode.reward - low) / (high - low)
    return Graded(value=value)
