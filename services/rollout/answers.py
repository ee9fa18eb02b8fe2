"""The answer to a call: how vLLM samples it, and how its tokens become text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from protocol.calls import Call, Piece, Token
from protocol.messages import FinishReason
from vllm.logprobs import Logprob
from vllm.outputs import CompletionOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.tokenizers.detokenizer_utils import convert_ids_list_to_tokens
from vllm.v1.engine.detokenizer import IncrementalDetokenizer

from services.rollout.samples import SamplingError, spread


def sampling_params(call: Call, max_tokens: int) -> SamplingParams:
    """Return how vLLM samples the tokens that follow those of earlier tries."""
    sampling = call.sampling
    num_sampled = len(call.so_far)
    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        stop_token_ids=list(sampling.stop_token_ids),
        ignore_eos=sampling.ignore_eos,
        max_tokens=max_tokens,
        min_tokens=max(0, sampling.min_tokens - num_sampled),
        seed=None if sampling.seed is None else spread(sampling.seed + num_sampled),
        logprobs=sampling.top_logprobs,
        # vLLM computes them before temperature, without the prefix cache. A try that sampled tokens
        # has sent them already.
        prompt_logprobs=0 if sampling.prompt_logprobs and not num_sampled else None,
        # Flat log-probs need no dictionary for each token.
        flat_logprobs=sampling.prompt_logprobs,
        # `Answer` detokenizes: it knows the text that earlier tries have sent.
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
        stream_interval=1 if call.streams or sampling.stop else None,
    )


class Answer:
    """Reads the tokens of one response: their certain text, up to a stop text.

    Text that could begin a stop text is kept back, and so is a part of a character. Both come with
    later tokens, also in a later try: the length of the text depends on the tokens alone.
    """

    def __init__(self, call: Call, prompt_ids: Sequence[int], tokenizer: Any) -> None:
        self.call = call
        self.prompt_ids = prompt_ids
        self._tokenizer = tokenizer
        sampling = SamplingParams(
            stop=list(call.sampling.stop),
            min_tokens=call.sampling.min_tokens,
            max_tokens=None,
        )
        request: Any = SimpleNamespace(
            request_id=call.id,
            prompt_token_ids=list(prompt_ids),
            prompt_embeds=None,
            sampling_params=sampling,
        )
        self._text = IncrementalDetokenizer.from_new_request(tokenizer, request)
        self._text.update(list(call.so_far), False)
        self._text.get_next_output_text(False, True)

    @property
    def num_tokens(self) -> int:
        """The number of tokens that this try has added."""
        return self._text.num_output_tokens() - len(self.call.so_far)

    def piece(self, output: CompletionOutput) -> Piece:
        """Return the new tokens without spans of weights; the last piece has a finish reason."""
        num_before = self.num_tokens
        reason = output.finish_reason
        if reason not in {None, *FinishReason}:
            raise SamplingError(f"vLLM ended a response with {reason!r}")
        stop = self._text.update(list(output.token_ids), reason == FinishReason.STOP)
        if stop is not None:
            reason = FinishReason.STOP
        # Tokens beyond a stop text do not count.
        num_new = self.num_tokens - num_before
        logprobs = output.logprobs or []
        pairs = zip(output.token_ids[:num_new], logprobs[:num_new], strict=True)
        return Piece(
            call_id=self.call.id,
            tries=self.call.tries,
            prompt_ids=None if num_before else tuple(self.prompt_ids),
            tokens=tuple(self._token(*pair) for pair in pairs),
            text=self._text.get_next_output_text(reason is not None, True),
            finish_reason=FinishReason(reason) if reason else None,
            stop_reason=output.stop_reason if stop is None else stop,
        )

    def _token(self, token_id: int, logprobs: Mapping[int, Logprob] | None) -> Token:
        if not logprobs or token_id not in logprobs:
            raise SamplingError("vLLM returned log-probs that are not those of the sampled tokens")
        values = {other_id: entry.logprob for other_id, entry in logprobs.items()}
        likely = sorted(values, key=values.__getitem__, reverse=True)
        finite = [other_id for other_id in likely if math.isfinite(values[other_id])]
        top_ids = finite[: self.call.sampling.top_logprobs]
        return Token(
            id=token_id,
            text=self._token_text(token_id),
            logprob=values[token_id],
            top=tuple((top_id, self._token_text(top_id), values[top_id]) for top_id in top_ids),
        )

    def _token_text(self, token_id: int) -> str:
        return _token_text(self._tokenizer, token_id)


@lru_cache(maxsize=2**18)
def _token_text(tokenizer: Any, token_id: int) -> str:
    return convert_ids_list_to_tokens(tokenizer, [token_id])[0]
