"""The engine: vLLM in child processes, with weights that change while it runs.

Only this module, `answers`, `scheduler` and `transfer` import vllm. The same code runs on a CPU and
on a GPU.

Weights are exchanged while requests wait: pause, load, name the version, settle the KV cache,
resume. With ``recompute`` every running request returns to prefill, so that its next tokens are
conditioned on the whole prefix under the new weights. With ``keep`` running requests continue with
their KV cache, and vLLM cannot clear it meanwhile. A new request must not read stale blocks, so the
cache keys of each load have their own salt.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import os
import time
import typing
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from protocol.calls import Call, Piece
from protocol.messages import FinishReason, VersionSpan
from protocol.recipe import Sampling
from vllm.config.lora import MaxLoRARanks
from vllm.config.weight_transfer import WeightTransferConfig
from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.exceptions import VLLMClientError
from vllm.inputs import tokens_input
from vllm.logprobs import FlatLogprobs
from vllm.lora.request import LoRARequest
from vllm.outputs import CompletionOutput, RequestOutput, WeightVersionSpan
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError
from vllm.v1.engine.output_processor import RequestState

from services.chassis.faults import Unworkable
from services.chassis.renderer import PromptRenderer
from services.rollout import engine_errors
from services.rollout.answers import Answer, sampling_params
from services.rollout.samples import (
    EngineDied,
    EngineError,
    LoadError,
    RequestRefused,
    Sample,
    SamplingError,
    response_text,
    spread,
    version_span,
)
from services.rollout.scheduler import AsyncBatchingScheduler, BatchingScheduler
from services.rollout.settings import EngineSettings
from services.rollout.transfer import BACKEND, Worker

_CPU_KV_CACHE_BYTES = 512 * 2**20
_CPU_BATCH_TOKENS = 4096
_CPU_SEQUENCES = 256
_SHUT_DOWN_S = 3.0
_ADAPTER = "policy"
# The mean length of responses is a moving average of this many.
_AVERAGED_RESPONSES = 64
# vLLM's CUDA graphs end at this batch size, unless it is set higher, in multiples of the step.
_VLLM_GRAPH_SIZE = 512
_GRAPH_STEP = 16
_ONE_TOKEN = Sampling(max_tokens=1)
# The engine decodes tokens at several places at once, to compare them with its own prefill. They
# cross the boundary of a KV block on GPUs.
_BLOCK = 16
_DECODED_PLACES = 4
_DECODED_TOKENS = 5
# Probes go first: a load returns running requests to the queue, and some may find no room.
_PROBE_PRIORITY = -1
# vLLM's ranks in ascending order.
_LORA_RANKS = typing.get_args(MaxLoRARanks)


class Engine:
    """One engine and its weights version."""

    def __init__(self, llm: AsyncLLM, settings: EngineSettings, prompts: PromptRenderer) -> None:
        self.llm = llm
        self.prompts = prompts
        self.settings = settings
        # Groups in the engine, and their incomplete responses.
        self.num_groups = 0
        self.num_responses = 0
        # The mean length of recent responses with their prompts. The initial guess counts as one.
        self.mean_tokens = settings.max_context / 2
        self._num_averaged = 1
        # Counts begun responses, outputs of a job's calls, and completed loads.
        self._num_events = 0
        # The number of token ids that the model may sample.
        self.num_ids = math.inf
        self.label = ""
        # Whether a load has begun and not succeeded.
        self.dirty = False
        self.sleeps = False
        self._adapter: LoRARequest | None = None
        self._numbers = itertools.count()
        self._cache_salt = ""
        # Whether the last load kept the KV of older weights.
        self._kept_kv = False

    @classmethod
    async def start(
        cls,
        prompts: PromptRenderer,
        folder: Path,
        label: str,
        settings: EngineSettings,
        base: Path | None = None,
    ) -> Engine:
        """Start an engine on the folder of a model, or of an adapter for the model ``base``.

        It takes tens of seconds. ``label`` names the version.

        Raises:
            EngineError: if vLLM cannot serve the model, with its error, or the tokenizer fails.
        """
        try:
            # The renderer checks the tokenizer first: vLLM loads it without limits.
            await prompts.open(base or folder)
            num_ids = (await prompts.describe()).max_id + 1
        except Unworkable as error:
            raise EngineError(str(error)) from error
        try:
            arguments = _arguments(base or folder, settings)
            if base is not None:
                arguments = replace(arguments, **_lora_arguments(folder, settings.lora_rank))
            engine_errors.reset()
            # A thread starts it, so that the service answers its health checks meanwhile.
            llm = await asyncio.to_thread(_start_vllm, arguments)
            engine = cls(llm, settings, prompts)
            engine.num_ids = num_ids
            if num_ids < llm.model_config.get_vocab_size():
                await llm.collective_rpc("use_ids", args=(num_ids,))
            if base is not None:
                await engine._exchange(folder)
        except Exception as error:
            raise EngineError(
                f"vLLM did not start: {engine_errors.read_last() or error}"
            ) from error
        await engine._name_version(label)
        return engine

    @property
    def tokenizer(self) -> Any:
        """The tokenizer for decoding; `PromptRenderer` encodes."""
        return self.llm.get_tokenizer()

    @property
    def has_died(self) -> bool:
        return self.llm.errored

    def shut_down(self) -> None:
        self.llm.shutdown(timeout=_SHUT_DOWN_S)

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, num: int, seed: int
    ) -> list[Sample]:
        """Sample ``num`` responses to one prompt; cancelling this aborts them.

        Raises:
            LoadError: if the last load has failed.
            RequestRefused: if vLLM refuses the prompt or the sampling parameters.
            SamplingError: if vLLM aborts a response or returns it incomplete.
            EngineDied: if the engine's processes are gone.
        """
        if self.dirty:
            raise LoadError("the last load failed; nothing is sampled until a load succeeds")
        seeds = range(spread(seed), spread(seed) + num)
        responses = [asyncio.ensure_future(self._respond(prompt_ids, sampling, s)) for s in seeds]
        self.num_groups += 1
        try:
            return await asyncio.gather(*responses)
        finally:
            self.num_groups -= 1
            for response in responses:
                response.cancel()
            await asyncio.gather(*responses, return_exceptions=True)

    def room(self, group_size: int, claimed: int) -> int:
        """Return how many more groups fit, if ``claimed`` groups are leased already.

        None fits while the engine sleeps, or while a response waits for its first token: it needs
        KV blocks or a place in the batch.
        """
        if self.sleeps or any(state.is_prefilling for state in self._group_states):
            return 0
        num_arriving = (claimed - self.num_groups) * group_size
        free_places = self.places - self.num_responses - num_arriving
        return max(0, math.ceil(free_places / group_size))

    @property
    def progress(self) -> int:
        """A number that changes when a response begins or gets tokens, or a load ends.

        While the engine sleeps, it is the clock: sleep is no stall.
        """
        if self.sleeps:
            return time.monotonic_ns()
        detokenizers = [state.detokenizer for state in self._group_states if state.detokenizer]
        num_tokens = sum(detokenizer.num_output_tokens() for detokenizer in detokenizers)
        return self._num_events + num_tokens

    @property
    def _group_states(self) -> Iterator[RequestState]:
        """States of groups' responses. Calls are few, and do not show the progress of groups."""
        states = self.llm.output_processor.request_states.values()
        return (state for state in states if state.output_kind is not RequestOutputKind.DELTA)

    @property
    def places(self) -> int:
        """The number of responses of mean length that fit in a batch and in the KV cache.

        vLLM preempts further ones and computes their KV again.
        """
        config = self.llm.vllm_config
        cache = config.cache_config
        tokens = cache.kv_cache_size_tokens or (cache.num_gpu_blocks or 0) * cache.block_size
        return min(config.scheduler_config.max_num_seqs, max(1, int(tokens / self.mean_tokens)))

    def _note_length(self, num_tokens: int) -> None:
        self._num_averaged = min(self._num_averaged + 1, _AVERAGED_RESPONSES)
        self.mean_tokens += (num_tokens - self.mean_tokens) / self._num_averaged

    async def _respond(self, prompt_ids: Sequence[int], sampling: Sampling, seed: int) -> Sample:
        first_label = self.label
        self.num_responses += 1
        self._num_events += 1
        try:
            output = await self._output(prompt_ids, sampling, seed)
        finally:
            self.num_responses -= 1
        (response,) = output.outputs
        self._note_length(len(prompt_ids) + len(response.token_ids))
        return self._sample(response, first_label)

    async def _output(
        self,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        seed: int,
        priority: int = 0,
        **options: Any,
    ) -> RequestOutput:
        final: RequestOutput | None = None
        with _translated_errors():
            parameters = _group_params(sampling, seed, **options)
            name = f"response-{next(self._numbers)}"
            async with self._outputs(prompt_ids, parameters, name, priority) as outputs:
                async for output in outputs:
                    final = output
        if final is None:
            raise SamplingError("vLLM returned no output")
        return final

    def _outputs(
        self,
        prompt_ids: Sequence[int],
        parameters: SamplingParams,
        name: str,
        priority: int,
    ) -> aclosing[AsyncGenerator[RequestOutput]]:
        if max(prompt_ids, default=0) >= self.num_ids:
            # vLLM accepts each id of the tokenizer, and crashes on ids without an embedding.
            raise RequestRefused(
                f"token {max(prompt_ids)} of the prompt is none of the {self.num_ids} in use"
            )
        prompt = tokens_input(list(prompt_ids), cache_salt=self._cache_salt)
        outputs = self.llm.generate(
            prompt, parameters, name, lora_request=self._adapter, priority=priority
        )
        return aclosing(outputs)

    async def answer(
        self, call: Call, prompt_ids: Sequence[int], max_tokens: int
    ) -> AsyncGenerator[Piece]:
        """Sample up to ``max_tokens`` after the prompt and the call's tokens so far.

        Closing the generator aborts the response.

        Raises:
            RequestRefused: if vLLM refuses the prompt or the sampling parameters.
            SamplingError: if vLLM aborts the response.
            EngineDied: if the engine's processes are gone.
        """
        answer = Answer(call, prompt_ids, self.tokenizer)
        first_label = self.label
        name = f"call-{next(self._numbers)}"
        with _translated_errors():
            ids = [*prompt_ids, *call.so_far]
            parameters = sampling_params(call, max_tokens)
            # The job's requests go first, and may preempt calls of clients.
            is_from_client = call.terms is None
            async with self._outputs(ids, parameters, name, int(is_from_client)) as outputs:
                async for output in outputs:
                    (response,) = output.outputs
                    self._num_events += not is_from_client
                    piece = answer.piece(response)
                    count = answer.num_tokens
                    versions = response.weight_versions or self._current_versions(name, count)
                    update = {
                        "spans": tuple(self._spans(versions, first_label, count)),
                        "prompt_logprobs": _prompt_logprobs(output),
                    }
                    yield piece.model_copy(update=update)
                    if piece.is_last:
                        if not is_from_client:
                            self._note_length(len(ids) + count)
                        return

    def _current_versions(self, name: str, num_tokens: int) -> list[WeightVersionSpan]:
        """Return the weights versions of a running request; vLLM reports them only at its end."""
        processor = self.llm.output_processor
        (request_id,) = processor.external_req_ids[name]
        versions = processor.request_states[request_id].weight_version_starts
        ends = [*(start for _, start in versions[1:]), num_tokens]
        return [
            WeightVersionSpan(version, start, end)
            for (version, start), end in zip(versions, ends, strict=True)
        ]

    async def score(self, prompt: Sequence[int], seconds: dict[str, float]) -> list[float]:
        """Return the log-probs of a prompt's tokens from the second on, in nats at temperature 1.

        They are computed without the prefix cache. After them come the gaps between the engine's
        decoding and its own prefill, for tokens at several places. Add the duration to ``seconds``.

        Raises:
            LoadError: if the engine fails or exceeds the deadline.
            EngineDied: if the engine's processes are gone.
        """
        last = len(prompt) - _DECODED_TOKENS
        starts = range(_BLOCK - 2, last + 1, _BLOCK)[-_DECODED_PLACES:] or [max(1, last)]
        async with self._phase("probe", seconds):
            logprobs, *gaps = await asyncio.gather(
                self._prefill(prompt), *(self._decoding_gaps(prompt, start) for start in starts)
            )
        return [*logprobs, *itertools.chain(*gaps)]

    async def _decoding_gaps(self, prompt: Sequence[int], start: int) -> list[float]:
        """Return how far log-probs of decoded tokens are from those of a prefill, in nats."""
        ids = prompt[:start]
        sampling = Sampling(max_tokens=min(_DECODED_TOKENS, len(prompt) - start))
        output = await self._output(ids, sampling, 0, _PROBE_PRIORITY, ignore_eos=True)
        (response,) = output.outputs
        prefilled = await self._prefill([*ids, *response.token_ids])
        # The prefill samples the first token.
        decoded = cast(FlatLogprobs, response.logprobs).logprobs[1:]
        pairs = zip(decoded, prefilled[start:], strict=True)
        return [abs(first - second) for first, second in pairs]

    async def _prefill(self, ids: Sequence[int]) -> list[float]:
        output = await self._output(ids, _ONE_TOKEN, 0, _PROBE_PRIORITY, prompt_logprobs=0)
        return cast(FlatLogprobs, output.prompt_logprobs).logprobs

    async def load(self, folder: Path | None, label: str, *, keep_kv: bool) -> dict[str, float]:
        """Exchange the weights while requests wait, and return the seconds of each phase.

        Without a folder an engine for adapters samples from their base model.

        Raises:
            LoadError: naming the phase that failed or exceeded its deadline.
        """
        seconds: dict[str, float] = {}
        self.dirty = True
        async with self._phase("pause", seconds):
            await self.llm.pause_generation(mode="keep", clear_cache=False)
        async with self._phase("load", seconds):
            await self._exchange(folder)
        async with self._phase("settle", seconds):
            await self._name_version(label)
            await self._settle_cache(keep_kv)
        async with self._phase("resume", seconds):
            await self.llm.resume_generation()
        self.dirty = False
        return seconds

    async def sleep(self) -> None:
        """Release the GPU: weights move to the host, the KV of running requests is lost.

        Raises:
            LoadError: if it failed or took too long.
        """
        self.sleeps = True
        async with self._phase("sleep", {}):
            await self.llm.sleep(level=1, mode="keep")

    async def wake_up(self) -> None:
        """Return to the GPU with the same weights, and prefill running requests again.

        Raises:
            LoadError: if it failed or took too long.
        """
        async with self._phase("wake up", {}):
            await self.llm.wake_up()
        self.sleeps = False

    async def _exchange(self, folder: Path | None) -> None:
        if folder is None:
            self._adapter = None
        elif self.settings.lora_rank:
            await self.llm.add_lora(LoRARequest(_ADAPTER, 1, str(folder), load_inplace=True))
            # A request with `load_inplace` would load the adapter in every batch.
            self._adapter = LoRARequest(_ADAPTER, 1, str(folder))
        else:
            await self.llm.start_weight_update()
            await self.llm.update_weights(WeightTransferUpdateRequest({"path": str(folder)}))
            await self.llm.finish_weight_update()

    async def _name_version(self, label: str) -> None:
        await self.llm.update_weight_version(label)
        self.label = label
        self._num_events += 1
        self._cache_salt = f"load-{next(self._numbers)}"

    async def _settle_cache(self, keep_kv: bool) -> None:
        self._kept_kv = keep_kv
        if not keep_kv and not await self.llm.reset_prefix_cache(reset_running_requests=True):
            raise EngineError("vLLM did not clear its KV cache")

    @asynccontextmanager
    async def _phase(self, name: str, seconds: dict[str, float]) -> AsyncIterator[None]:
        started = time.monotonic()
        try:
            async with asyncio.timeout(self.settings.sync_timeout_s):
                yield
        except TimeoutError as error:
            limit = f"{self.settings.sync_timeout_s:g} s (WEIR_ROLLOUT_SYNC_TIMEOUT_S)"
            raise LoadError(f"{name}: the engine did not answer within {limit}") from error
        except (EngineDeadError, EngineDied) as error:
            raise EngineDied(f"{name}: {engine_errors.describe_death()}") from error
        except Exception as error:
            raise LoadError(f"{name}: {type(error).__name__}: {error}") from error
        seconds[name] = time.monotonic() - started

    def _sample(self, output: CompletionOutput, first_label: str) -> Sample:
        if output.finish_reason not in set(FinishReason):
            raise SamplingError(f"vLLM ended a response with {output.finish_reason!r}")
        token_ids = list(output.token_ids)
        logprobs = output.logprobs
        if not isinstance(logprobs, FlatLogprobs) or logprobs.token_ids != token_ids:
            raise SamplingError("vLLM returned log-probs that are not those of the sampled tokens")
        is_stopped = output.finish_reason == FinishReason.STOP
        ends_with_token = is_stopped and not isinstance(output.stop_reason, str)
        return Sample(
            token_ids=np.asarray(token_ids, dtype=np.int32),
            behavior_logprobs=np.asarray(logprobs.logprobs, dtype=np.float32),
            text=response_text(self.tokenizer, token_ids, is_stopped=ends_with_token),
            finish_reason=FinishReason(output.finish_reason),
            spans=tuple(self._spans(output.weight_versions, first_label, len(token_ids))),
        )

    def _spans(
        self, spans: Sequence[WeightVersionSpan] | None, first_label: str, num_tokens: int
    ) -> Iterator[VersionSpan]:
        if not spans:
            raise SamplingError("vLLM returned a response without its weights versions")
        if self._kept_kv and spans[0].version != first_label:
            # The older weights may have prefilled the prompt: an empty span records them.
            yield version_span(first_label, 0, 0)
        for span in spans:
            if span.start < num_tokens:
                yield version_span(span.version, span.start, min(span.end, num_tokens))


def _prompt_logprobs(output: RequestOutput) -> tuple[float | None, ...] | None:
    """Return the log-probs of a prompt's tokens, which only the first output of a request has."""
    if not output.prompt_logprobs:
        return None
    return (None, *cast(FlatLogprobs, output.prompt_logprobs).logprobs)


@contextmanager
def _translated_errors() -> Iterator[None]:
    """Raise vLLM's errors of a request as this project's."""
    try:
        yield
    except EngineDeadError as error:
        raise EngineDied(engine_errors.describe_death()) from error
    except (VLLMClientError, ValueError) as error:
        raise RequestRefused(f"vLLM refuses the request: {error}") from error
    except EngineGenerateError as error:
        raise EngineError(f"vLLM failed: {error.__cause__!r}") from error


def _start_vllm(arguments: AsyncEngineArgs) -> AsyncLLM:
    on_cpu = current_platform.is_cpu()
    has_gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "")[:1].isalnum()
    if on_cpu and has_gpu and any(Path("/dev").glob("nvidia[0-9]*")):
        raise EngineError(
            "CUDA_VISIBLE_DEVICES names a GPU, but the installed vLLM is the build for CPUs; "
            "run 'make install GPU=1' in a new environment"
        )
    # vLLM's defaults for offline use favour throughput.
    config = arguments.create_engine_config(usage_context=UsageContext.LLM_CLASS)
    graph_size = math.ceil(config.scheduler_config.max_num_seqs / _GRAPH_STEP) * _GRAPH_STEP
    if not on_cpu and graph_size > _VLLM_GRAPH_SIZE:
        arguments = replace(arguments, max_cudagraph_capture_size=graph_size)
        config = arguments.create_engine_config(usage_context=UsageContext.LLM_CLASS)
    if not on_cpu and not config.use_v2_model_runner:
        raise EngineError(
            "vLLM's model runner is V1, which samples seeded requests one by one; unset "
            "VLLM_USE_V2_MODEL_RUNNER, or find in vLLM's log the model's unsupported feature"
        )
    is_async = config.scheduler_config.async_scheduling
    scheduler = AsyncBatchingScheduler if is_async else BatchingScheduler
    config.scheduler_config.scheduler_cls = scheduler
    return AsyncLLM.from_vllm_config(config, disable_log_stats=True)


def _arguments(folder: Path, settings: EngineSettings) -> AsyncEngineArgs:
    on_cpu = current_platform.is_cpu()
    return AsyncEngineArgs(
        model=str(folder),
        dtype=settings.dtype,  # type: ignore[arg-type]
        max_model_len=settings.max_context,
        max_num_seqs=settings.max_sequences or (_CPU_SEQUENCES if on_cpu else None),
        tensor_parallel_size=settings.num_gpus,
        gpu_memory_utilization=settings.gpu_memory,
        kv_cache_memory_bytes=settings.kv_cache_bytes or (_CPU_KV_CACHE_BYTES if on_cpu else None),
        # Compilation takes longer than the whole run of a small model.
        enforce_eager=on_cpu,
        # On a CPU vLLM crashes if the prompt of a seeded request is split over two batches.
        enable_chunked_prefill=not on_cpu,
        max_num_batched_tokens=max(settings.max_context, _CPU_BATCH_TOKENS) if on_cpu else None,
        enable_prefix_caching=True,
        scheduling_policy="priority",
        enable_sleep_mode=settings.takes_turns and not on_cpu,
        logprobs_mode="processed_logprobs",
        load_format="safetensors",
        # The learner's head has the same type.
        hf_overrides={"head_dtype": "float32"},
        use_tqdm_on_load=False,
        worker_extension_cls=f"{Worker.__module__}.{Worker.__qualname__}",
        weight_transfer_config=WeightTransferConfig(backend=BACKEND),
    )


def _lora_arguments(adapter: Path, rank: int) -> dict[str, Any]:
    config = json.loads((adapter / "adapter_config.json").read_bytes())
    return {
        "enable_lora": True,
        "max_lora_rank": next(max_rank for max_rank in _LORA_RANKS if max_rank >= rank),
        # vLLM would also compute the adapters of other modules.
        "lora_target_modules": config["target_modules"],
    }


def _group_params(sampling: Sampling, seed: int, **options: Any) -> SamplingParams:
    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        max_tokens=sampling.max_tokens,
        stop=list(sampling.stop),
        seed=seed,
        # Only the log-prob of the sampled token.
        logprobs=0,
        flat_logprobs=True,
        # vLLM needs text only to find stop texts.
        detokenize=bool(sampling.stop),
        output_kind=RequestOutputKind.FINAL_ONLY,
        **options,
    )
