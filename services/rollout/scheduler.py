"""vLLM's schedulers, but tokens leave the engine's process many at a time.

vLLM sends every token of every request to the process that asked, which decodes it: for a small
model a quarter as much work as sampling it. Here the first token of a group's response is sent,
which tells that it has begun; then `_TOKENS` at a time, or those of `_LATE_S`, which tell that it
goes on; the rest when it ends; and all when the engine pauses, since vLLM counts the tokens of a
message to the version of the weights at that time. Those of a call that is streamed leave one by
one.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from vllm.sampling_params import RequestOutputKind
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.outputs import LogprobsLists

from services.rollout import last_words

last_words.keep()  # the engine's processes import this module before they do anything else
_TOKENS = 64  # a held token takes half a KiB
_LATE_S = 5.0


class _Batching(Scheduler if TYPE_CHECKING else object):
    """Holds the tokens of requests that nobody reads before they are complete."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._held: dict[str, list[EngineCoreOutput]] = {}
        self._late_at = 0.0

    def update_from_output(
        self, scheduler_output: Any, model_runner_output: Any
    ) -> dict[int, EngineCoreOutputs]:
        for request_id in scheduler_output.finished_req_ids:  # before this step; some by an abort
            self._held.pop(request_id, None)
        sent = super().update_from_output(scheduler_output, model_runner_output)
        for outputs in sent.values():
            outputs.outputs = list(self._due(outputs.outputs))
        if self._is_paused:
            self._send_held(sent)
        return sent

    def has_requests(self) -> bool:
        return super().has_requests() or (self._is_paused and bool(self._held))

    @property
    def _is_paused(self) -> bool:
        return self.pause_state == PauseState.PAUSED_ALL

    def _due(self, outputs: Iterable[EngineCoreOutput]) -> Iterator[EngineCoreOutput]:
        is_late = (now := time.monotonic()) > self._late_at
        self._late_at = now + _LATE_S if is_late else self._late_at
        for output in outputs:
            request_id = output.request_id
            held = self._held.setdefault(request_id, [])
            held.append(output)
            is_enough = is_late or len(held) == _TOKENS
            if output.finished or is_enough or self._is_awaited(output):
                yield _joined(self._held.pop(request_id))

    def _is_awaited(self, output: EngineCoreOutput) -> bool:
        """Whether it is a group's first token, or its text is read or searched for stop texts.

        The log-probs of a prompt would be lost where outputs are joined.
        """
        sampling = self.requests[output.request_id].sampling_params
        if sampling is None or output.new_prompt_logprobs_tensors is not None:
            return True
        is_first = output.prefill_stats is not None
        is_of_group = sampling.output_kind is not RequestOutputKind.DELTA
        return bool(sampling.stop or sampling.stream_interval) or (is_first and is_of_group)

    def _send_held(self, sent: dict[int, EngineCoreOutputs]) -> None:
        for request_id, outputs in self._held.items():
            if (request := self.requests.get(request_id)) is not None:  # else it was aborted
                of_client = sent.setdefault(request.client_index, EngineCoreOutputs(outputs=[]))
                of_client.outputs.append(_joined(outputs))
        self._held.clear()


class BatchingScheduler(_Batching, Scheduler):
    """For engines that schedule a step when the one before has ended."""


class AsyncBatchingScheduler(_Batching, AsyncScheduler):
    """For engines that schedule a step while the one before is computed."""


def _joined(outputs: list[EngineCoreOutput]) -> EngineCoreOutput:
    """The last output, with the tokens and log-probs of all.

    Each row of log-probs is as long as that of the request in its batch which asks for most.
    """
    *earlier, last = outputs
    if earlier:
        logprobs = [output.new_logprobs for output in outputs if output.new_logprobs is not None]
        least = min(each.logprobs.shape[1] for each in logprobs)
        last.new_token_ids = [token for output in outputs for token in output.new_token_ids]
        last.new_logprobs = LogprobsLists(
            np.concatenate([each.logprob_token_ids[:, :least] for each in logprobs]),
            np.concatenate([each.logprobs[:, :least] for each in logprobs]),
            np.concatenate([each.sampled_token_ranks for each in logprobs]),
        )
    return last
