"""The engine: vLLM in this process's children, sampling from weights that change under it.

This file, `answers`, `scheduler` and `transfer`, its part in vLLM's workers, are the only ones that
import vllm. The same code runs on a CPU and on a GPU.

Weights are exchanged while requests wait: pause, load, name the version, settle the KV cache,
resume. With ``recompute`` every running request is sent back to prefill, so that each of its next
tokens is conditioned on the whole prefix under the new weights. With ``keep`` running requests go
on with the KV cache they have, and vLLM can clear nothing while they do. So that no *new* request
reads stale blocks, requests made under different weights use differently salted cache keys.
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
from vllm.logprobs import FlatLogprobs, PromptLogprobs
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
from services.rollout import last_words
from services.rollout.answers import Answer, parameters_of
from services.rollout.samples import (
    EngineDied,
    EngineError,
    LoadError,
    RequestRefused,
    Sample,
    SamplingError,
    span_of,
    spread,
    text_of_response,
)
from services.rollout.scheduler import AsyncBatchingScheduler, BatchingScheduler
from services.rollout.settings import EngineSettings
from services.rollout.transfer import BACKEND, Worker

_CPU_KV_CACHE_BYTES = 512 * 2**20
_CPU_BATCH_TOKENS = 4096
_CPU_SEQUENCES = 256
_SHUT_DOWN_S = 3.0
_ADAPTER = "policy"
_LATELY = 64  # responses
_GRAPHS_OF_VLLM = 512  # responses, at which its CUDA graphs end unless more are asked for ...
_GRAPH_STEP = 16  # ... in steps of so many
_ONE_TOKEN = Sampling(max_tokens=1)
_DECODED = 17  # tokens of a probe
# A load sends running requests back to wait, and not all may find room again.
_FIRST = -1
_LORA_RANKS = typing.get_args(MaxLoRARanks)  # that vLLM knows, in order


class Engine:
    """One engine and the version of the weights that it samples from."""

    def __init__(self, llm: AsyncLLM, settings: EngineSettings, prompts: PromptRenderer) -> None:
        self.llm = llm
        self.prompts = prompts
        self.settings = settings
        self.num_groups = 0  # being sampled
        self.num_responses = 0  # of them, not yet complete
        self.mean_tokens = settings.max_context / 2  # of responses lately, prompts included
        self._num_begun = 0  # responses, outputs of a job's calls, and loads that have ended
        self._num_seen = 1  # responses, of which the first guess counts as one
        self.num_ids = math.inf  # of tokens
        self.label = ""
        self.dirty = False
        self.sleeps = False
        self._adapter: LoRARequest | None = None  # what requests are sampled with
        self._numbers = itertools.count()
        self._cache_salt = ""
        self._kept_kv = False  # a sync has kept KV that older weights wrote

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
            EngineError: if vLLM cannot serve the model, in vLLM's words, or its tokenizer fails.
        """
        try:  # first: vLLM loads the tokenizer without limits
            await prompts.open(base or folder)
            num_ids = (await prompts.describe()).max_id + 1
        except Unworkable as error:
            raise EngineError(str(error)) from error
        try:
            arguments = _arguments(base or folder, settings)
            if base is not None:
                arguments = replace(arguments, **_lora_arguments(folder, settings.lora_rank))
            last_words.listen()
            # In a thread: the service answers its health checks meanwhile.
            llm = await asyncio.to_thread(_start_vllm, arguments)
            engine = cls(llm, settings, prompts)
            engine.num_ids = num_ids
            if num_ids < llm.model_config.get_vocab_size():
                await llm.collective_rpc("use_ids", args=(num_ids,))
            if base is not None:
                await engine._exchange(folder)
        except Exception as error:
            raise EngineError(f"vLLM did not start: {last_words.said() or error}") from error
        await engine._name_version(label)
        return engine

    @property
    def tokenizer(self) -> Any:
        """For text of tokens: it encodes nothing here, and `PromptRenderer` knows it to decode."""
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
            LoadError: if the weights are not those of any version, because a load has failed.
            RequestRefused: if vLLM takes no request with such a prompt or such sampling.
            SamplingError: if vLLM aborts a response or returns it incomplete.
            EngineDied: if the engine's processes are gone.
        """
        if self.dirty:
            raise LoadError("the last load of weights failed, so nothing may be sampled")
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
        """How many groups more would find room, if ``claimed`` ones are here or on their way.

        None does while a response has no token yet: it waits for KV blocks or a place in the batch;
        nor while the engine sleeps.
        """
        if self.sleeps:
            return 0
        if any(state.is_prefilling for state in self._states):
            return 0
        on_their_way = (claimed - self.num_groups) * group_size
        return max(0, math.ceil((self.places - self.num_responses - on_their_way) / group_size))

    @property
    def progress(self) -> int:
        """A number that changes when a response begins or gets tokens, or a load ends.

        While the engine sleeps it is the clock, which always changes: sleep is no stall.
        """
        if self.sleeps:
            return time.monotonic_ns()
        detokenizers = [state.detokenizer for state in self._states if state.detokenizer]
        return self._num_begun + sum(each.num_output_tokens() for each in detokenizers)

    @property
    def _states(self) -> Iterator[RequestState]:
        """Those of responses, but for calls: few, which say nothing of a job's groups."""
        states = self.llm.output_processor.request_states.values()
        return (state for state in states if state.output_kind is not RequestOutputKind.DELTA)

    @property
    def places(self) -> int:
        """How many responses fit in a batch, and in the KV cache once they are as long as others.

        Beyond that vLLM preempts some and computes their KV again.
        """
        config = self.llm.vllm_config
        cache = config.cache_config
        tokens = cache.kv_cache_size_tokens or (cache.num_gpu_blocks or 0) * cache.block_size
        return min(config.scheduler_config.max_num_seqs, max(1, int(tokens / self.mean_tokens)))

    def _note_length(self, num_tokens: int) -> None:
        self._num_seen = min(self._num_seen + 1, _LATELY)
        self.mean_tokens += (num_tokens - self.mean_tokens) / self._num_seen

    async def _respond(self, prompt_ids: Sequence[int], sampling: Sampling, seed: int) -> Sample:
        began_under = self.label
        self.num_responses += 1
        self._num_begun += 1
        try:
            output = await self._output(prompt_ids, sampling, seed)
        finally:
            self.num_responses -= 1
        self._note_length(len(prompt_ids) + len(output.outputs[0].token_ids))
        return self._sample(output.outputs[0], began_under)

    async def _output(
        self,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        seed: int,
        priority: int = 0,
        **options: Any,
    ) -> RequestOutput:
        final: RequestOutput | None = None
        with _errors_named():
            parameters = _parameters(sampling, seed, **options)
            async with self._outputs(prompt_ids, parameters, priority=priority) as outputs:
                async for output in outputs:
                    final = output
        if final is None:
            raise SamplingError("vLLM returned no output")
        return final

    def _outputs(
        self,
        prompt_ids: Sequence[int],
        parameters: SamplingParams,
        name: str = "",
        priority: int = 0,
    ) -> aclosing[AsyncGenerator[RequestOutput]]:
        if max(prompt_ids, default=0) >= self.num_ids:
            # vLLM takes each one that the tokenizer knows, and dies of those without a row.
            words = f"token {max(prompt_ids)} of the prompt is none of the {self.num_ids} in use"
            raise RequestRefused(words)
        prompt = tokens_input(list(prompt_ids), cache_salt=self._cache_salt)
        name = name or f"response-{next(self._numbers)}"
        place = {"lora_request": self._adapter, "priority": priority}
        return aclosing(self.llm.generate(prompt, parameters, name, **place))

    async def answer(
        self, call: Call, prompt_ids: Sequence[int], max_tokens: int
    ) -> AsyncGenerator[Piece]:
        """Sample up to ``max_tokens`` behind the prompt and the call's tokens so far.

        Closing this aborts the response.

        Raises:
            RequestRefused: if vLLM takes no request with such a prompt or such sampling.
            SamplingError: if vLLM aborts the response.
            EngineDied: if the engine's processes are gone.
        """
        answer = Answer(call, prompt_ids, self.tokenizer)
        began_under = self.label
        name = f"call-{next(self._numbers)}"
        with _errors_named():
            ids = [*prompt_ids, *call.so_far]
            parameters = parameters_of(call, max_tokens)
            # What a job asks for goes first, and takes KV blocks of calls where there are none.
            of_client = call.terms is None
            async with self._outputs(ids, parameters, name, int(of_client)) as outputs:
                async for output in outputs:
                    (only,) = output.outputs
                    self._num_begun += not of_client
                    piece = answer.piece(only)
                    count = answer.num_tokens
                    versions = only.weight_versions or self._versions_so_far(name, count)
                    spans = self._spans(versions, began_under, count)
                    told = _of_prompt(output.prompt_logprobs)
                    yield piece.model_copy(update={"spans": tuple(spans), "prompt_logprobs": told})
                    if piece.is_last:
                        if not of_client:
                            self._note_length(len(ids) + count)
                        return

    def _versions_so_far(self, name: str, num_tokens: int) -> list[WeightVersionSpan]:
        """The weights of a request under way, of which vLLM tells with its last output alone."""
        processor = self.llm.output_processor
        (request_id,) = processor.external_req_ids[name]
        begun = processor.request_states[request_id].weight_version_starts
        ends = [*(start for _, start in begun[1:]), num_tokens]
        return [WeightVersionSpan(*of, end) for of, end in zip(begun, ends, strict=True)]

    async def score(self, prompt: Sequence[int], seconds: dict[str, float]) -> list[float]:
        """Log-probs of the tokens of a prompt, but for its first, in nats at temperature 1.

        They are computed anew, whatever the prefix cache has. Behind them are the gaps of tokens
        that it decodes, to itself when it reads them. Adds the time taken to ``seconds``.

        Raises:
            LoadError: if that fails or passes its deadline.
            EngineDied: if the engine's processes are gone.
        """
        async with self._phase("probe", seconds):
            given = await self._read(prompt)
            begun = prompt[: -min(_DECODED, len(prompt) // 2)]
            sampling = Sampling(max_tokens=len(prompt) - len(begun))
            output = await self._output(begun, sampling, 0, _FIRST, ignore_eos=True)
            (decoded,) = output.outputs
            read = (await self._read([*begun, *decoded.token_ids]))[len(begun) :]
        wrote = cast(FlatLogprobs, decoded.logprobs).logprobs[1:]  # without that of the prefill
        return [*given, *(abs(one - other) for one, other in zip(wrote, read, strict=True))]

    async def _read(self, ids: Sequence[int]) -> list[float]:
        output = await self._output(ids, _ONE_TOKEN, 0, _FIRST, prompt_logprobs=0)
        return cast(FlatLogprobs, output.prompt_logprobs).logprobs

    async def load(self, folder: Path | None, label: str, *, keep_kv: bool) -> dict[str, float]:
        """Exchange the weights while requests wait; returns the seconds that each phase took.

        Without a folder an engine for adapters samples from the model that they are for.

        Raises:
            LoadError: naming the phase that failed or passed its deadline.
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
        """Leave the GPU to others: weights go to the host, the KV of running requests is lost.

        Raises:
            LoadError: if it failed or took too long.
        """
        self.sleeps = True
        async with self._phase("sleep", {}):
            await self.llm.sleep(level=1, mode="keep")

    async def wake_up(self) -> None:
        """Take the GPU again, with the same weights; running requests are prefilled again.

        Raises:
            LoadError: if it failed or took too long.
        """
        async with self._phase("wake up", {}):
            await self.llm.wake_up()
        self.sleeps = False

    async def _exchange(self, folder: Path | None) -> None:
        if folder is None:
            self._adapter = None
            return
        if not self.settings.lora_rank:
            await self.llm.start_weight_update()
            await self.llm.update_weights(WeightTransferUpdateRequest({"path": str(folder)}))
            await self.llm.finish_weight_update()
            return
        await self.llm.add_lora(LoRARequest(_ADAPTER, 1, str(folder), load_inplace=True))
        # Of a request `load_inplace` would mean that every batch loads it.
        self._adapter = LoRARequest(_ADAPTER, 1, str(folder))

    async def _name_version(self, label: str) -> None:
        await self.llm.update_weight_version(label)
        self.label = label
        self._num_begun += 1
        self._cache_salt = f"load-{next(self._numbers)}"

    async def _settle_cache(self, keep_kv: bool) -> None:
        self._kept_kv = keep_kv
        if not keep_kv and not await self.llm.reset_prefix_cache(reset_running_requests=True):
            raise EngineError("vLLM answered that it did not clear its KV cache")

    @asynccontextmanager
    async def _phase(self, name: str, seconds: dict[str, float]) -> AsyncIterator[None]:
        started = time.monotonic()
        try:
            async with asyncio.timeout(self.settings.sync_timeout_s):
                yield
        except TimeoutError as error:
            limit = f"{self.settings.sync_timeout_s:g} s (WEIR_ROLLOUT_SYNC_TIMEOUT_S)"
            raise LoadError(f"{name}: no answer from the engine within {limit}") from error
        except (EngineDeadError, EngineDied) as error:
            raise EngineDied(f"{name}: {last_words.ended()}") from error
        except Exception as error:
            raise LoadError(f"{name}: {type(error).__name__}: {error}") from error
        seconds[name] = time.monotonic() - started

    def _sample(self, output: CompletionOutput, began_under: str) -> Sample:
        if output.finish_reason not in set(FinishReason):
            raise SamplingError(f"vLLM ended a response with {output.finish_reason!r}")
        token_ids = list(output.token_ids)
        logprobs = output.logprobs
        if not isinstance(logprobs, FlatLogprobs) or logprobs.token_ids != token_ids:
            raise SamplingError("vLLM returned log-probs that are not those of the sampled tokens")
        return Sample(
            token_ids=np.asarray(token_ids, dtype=np.int32),
            behavior_logprobs=np.asarray(logprobs.logprobs, dtype=np.float32),
            text=text_of_response(
                self.tokenizer,
                token_ids,
                is_stopped=output.finish_reason == FinishReason.STOP
                and not isinstance(output.stop_reason, str),
            ),
            finish_reason=FinishReason(output.finish_reason),
            spans=tuple(self._spans(output.weight_versions, began_under, len(token_ids))),
        )

    def _spans(
        self, spans: Sequence[WeightVersionSpan] | None, began_under: str, num_tokens: int
    ) -> Iterator[VersionSpan]:
        if not spans:
            raise SamplingError("vLLM did not say under which weights it sampled a response")
        if self._kept_kv and spans[0].version != began_under:
            # An empty span: the prompt may have been read under the older weights.
            yield span_of(began_under, 0, 0)
        for span in spans:
            if span.start < num_tokens:
                yield span_of(span.version, span.start, min(span.end, num_tokens))


def _of_prompt(told: PromptLogprobs | None) -> tuple[float | None, ...] | None:
    """Log-probs of a prompt's tokens, with which the first output of a request comes."""
    return (None, *cast(FlatLogprobs, told).logprobs) if told else None


@contextmanager
def _errors_named() -> Iterator[None]:
    """Errors of a request, as this project calls them."""
    try:
        yield
    except EngineDeadError as error:
        raise EngineDied(last_words.ended()) from error
    except (VLLMClientError, ValueError) as error:  # the latter of the types of parameters
        raise RequestRefused(f"vLLM refuses the request: {error}") from error
    except EngineGenerateError as error:  # which has no words of its own
        raise EngineError(f"vLLM failed: {error.__cause__!r}") from error


def _start_vllm(arguments: AsyncEngineArgs) -> AsyncLLM:
    is_given_one = os.environ.get("CUDA_VISIBLE_DEVICES", "")[:1].isalnum()
    if current_platform.is_cpu() and is_given_one and any(Path("/dev").glob("nvidia[0-9]*")):
        raise EngineError(
            "CUDA_VISIBLE_DEVICES gives it a GPU, but the installed vLLM is the build for CPUs; "
            "run 'make install GPU=1' in a new environment"
        )
    # The defaults of offline use are those for throughput.
    config = arguments.create_engine_config(usage_context=UsageContext.LLM_CLASS)
    most = -(-config.scheduler_config.max_num_seqs // _GRAPH_STEP) * _GRAPH_STEP
    if not current_platform.is_cpu() and most > _GRAPHS_OF_VLLM:
        arguments = replace(arguments, max_cudagraph_capture_size=most)
        config = arguments.create_engine_config(usage_context=UsageContext.LLM_CLASS)
    if not current_platform.is_cpu() and not config.use_v2_model_runner:
        raise EngineError(
            "its model runner is V1, which samples seeded requests one by one; unset "
            "VLLM_USE_V2_MODEL_RUNNER, or see in vLLM's log which feature of the model it lacks"
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
        enforce_eager=on_cpu,  # compiling takes longer than a small model's whole run
        # On a CPU vLLM dies of a seeded request whose prompt is split over two batches.
        enable_chunked_prefill=not on_cpu,
        max_num_batched_tokens=max(settings.max_context, _CPU_BATCH_TOKENS) if on_cpu else None,
        enable_prefix_caching=True,
        scheduling_policy="priority",
        enable_sleep_mode=settings.takes_turns and not on_cpu,
        logprobs_mode="processed_logprobs",
        load_format="safetensors",
        hf_overrides={"head_dtype": "float32"},  # as the learner's
        use_tqdm_on_load=False,
        worker_extension_cls=f"{Worker.__module__}.{Worker.__qualname__}",
        weight_transfer_config=WeightTransferConfig(backend=BACKEND),
    )


def _lora_arguments(adapter: Path, rank: int) -> dict[str, Any]:
    config = json.loads((adapter / "adapter_config.json").read_bytes())
    return {
        "enable_lora": True,
        "max_lora_rank": next(known for known in _LORA_RANKS if known >= rank),
        "lora_target_modules": config["target_modules"],  # others would be computed for nothing
    }


def _parameters(sampling: Sampling, seed: int, **options: Any) -> SamplingParams:
    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        max_tokens=sampling.max_tokens,
        stop=list(sampling.stop),
        seed=seed,
        logprobs=0,  # of the sampled token alone
        flat_logprobs=True,
        detokenize=bool(sampling.stop),  # vLLM reads text only to find stop strings
        output_kind=RequestOutputKind.FINAL_ONLY,
        **options,
    )
