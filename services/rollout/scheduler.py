"""vLLM's schedulers, but tokens leave the engine's process in batches.

vLLM sends every token of every request to the front-end process, which decodes it. For a small
model that costs a quarter as much as sampling. These schedulers send the first token of a group's
response, which shows that it has begun. Then they send `_BATCH_TOKENS` at a time, or the tokens of
`_MAX_DELAY_S`, and the remaining ones when the response ends. All tokens leave when the engine
pauses, since vLLM counts the tokens of a message to the weights version at that time. The tokens of
a streamed call leave one by one.
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

from services.rollout import engine_errors

# The engine's processes import this module before they do anything else.
engine_errors.record()
# A buffered token takes half a KiB.
_BATCH_TOKENS = 64
_MAX_DELAY_S = 5.0
Outputs = list[EngineCoreOutput]
ClientOutputs = dict[int, EngineCoreOutputs]


class _Batching(Scheduler if TYPE_CHECKING else object):
    """Buffers the tokens of requests that have no reader before they are complete."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._buffers: dict[str, Outputs] = {}
        self._next_flush = 0.0

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> ClientOutputs:
        # These requests finished before this step, some by an abort.
        for request_id in scheduler_output.finished_req_ids:
            self._buffers.pop(request_id, None)
        client_outputs = super().update_from_output(scheduler_output, model_runner_output)
        for outputs in client_outputs.values():
            outputs.outputs = list(self._due(outputs.outputs))
        if self._is_paused:
            self._flush(client_outputs)
        return client_outputs

    def has_requests(self) -> bool:
        is_flushing = self._is_paused and bool(self._buffers)
        return is_flushing or super().has_requests()

    @property
    def _is_paused(self) -> bool:
        return self.pause_state == PauseState.PAUSED_ALL

    def _due(self, outputs: Iterable[EngineCoreOutput]) -> Iterator[EngineCoreOutput]:
        now = time.monotonic()
        is_late = now > self._next_flush
        if is_late:
            self._next_flush = now + _MAX_DELAY_S
        for output in outputs:
            request_id = output.request_id
            buffer = self._buffers.setdefault(request_id, [])
            buffer.append(output)
            is_complete = output.finished or len(buffer) == _BATCH_TOKENS
            if is_late or is_complete or self._is_awaited(output):
                yield _join(self._buffers.pop(request_id))

    def _is_awaited(self, output: EngineCoreOutput) -> bool:
        """Whether it is a group's first token, or its text is streamed or searched for stop texts.

        The log-probs of a prompt would be lost if outputs were joined.
        """
        sampling = self.requests[output.request_id].sampling_params
        if sampling is None or output.new_prompt_logprobs_tensors is not None:
            return True
        is_first = output.prefill_stats is not None
        is_read = bool(sampling.stop or sampling.stream_interval)
        is_from_group = sampling.output_kind is not RequestOutputKind.DELTA
        return is_read or (is_first and is_from_group)

    def _flush(self, client_outputs: ClientOutputs) -> None:
        for request_id, buffer in self._buffers.items():
            request = self.requests.get(request_id)
            # An aborted request is gone.
            if request is None:
                continue
            index = request.client_index
            if index not in client_outputs:
                client_outputs[index] = EngineCoreOutputs(outputs=[])
            client_outputs[index].outputs.append(_join(buffer))
        self._buffers.clear()


class BatchingScheduler(_Batching, Scheduler):
    """For engines that schedule a step when the previous step has ended."""


class AsyncBatchingScheduler(_Batching, AsyncScheduler):
    """For engines that schedule a step while the previous step is computed."""


def _join(outputs: Outputs) -> EngineCoreOutput:
    """Return the last output, with the tokens and log-probs of all.

    Rows of log-probs are as long as the largest request in their batch.
    """
    last = outputs[-1]
    if len(outputs) > 1:
        all_logprobs = [output.new_logprobs for output in outputs]
        rows = [row for row in all_logprobs if row is not None]
        width = min(row.logprobs.shape[1] for row in rows)
        last.new_token_ids = [token for output in outputs for token in output.new_token_ids]
        last.new_logprobs = LogprobsLists(
            np.concatenate([row.logprob_token_ids[:, :width] for row in rows]),
            np.concatenate([row.logprobs[:, :width] for row in rows]),
            np.concatenate([row.sampled_token_ranks for row in rows]),
        )
    return last
