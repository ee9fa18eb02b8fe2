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


def parameters_of(call: Call, max_tokens: int) -> SamplingParams:
    """How the rest of a response is sampled, behind the tokens of earlier tries."""
    given = call.sampling
    done = len(call.so_far)
    return SamplingParams(
        temperature=given.temperature,
        top_p=given.top_p,
        top_k=given.top_k,
        min_p=given.min_p,
        stop_token_ids=list(given.stop_token_ids),
        ignore_eos=given.ignore_eos,
        max_tokens=max_tokens,
        min_tokens=max(0, given.min_tokens - done),
        seed=None if given.seed is None else spread(given.seed + done),
        logprobs=given.top_logprobs,
        # vLLM takes them before temperature, and reads no prefix cache for them. Where tokens have
        # come, so have they.
        prompt_logprobs=0 if given.prompt_logprobs and not done else None,
        flat_logprobs=given.prompt_logprobs,  # no dictionary for each token
        detokenize=False,  # `Answer` does, which knows what earlier tries have told
        output_kind=RequestOutputKind.DELTA,
        stream_interval=1 if call.streams or given.stop else None,
    )


class Answer:
    """Reads the tokens of one response: their certain text, up to a stop text.

    Text that could begin a stop text is kept back, and so is a part of a character. Both are told
    with later tokens, also in a later try: how much is told depends on the tokens alone.
    """

    def __init__(self, call: Call, prompt_ids: Sequence[int], tokenizer: Any) -> None:
        self.call = call
        self.prompt_ids = prompt_ids
        self._tokenizer = tokenizer
        least = call.sampling.min_tokens
        sampling = SamplingParams(stop=list(call.sampling.stop), min_tokens=least, max_tokens=None)
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
        """How many this try has added."""
        return self._text.num_output_tokens() - len(self.call.so_far)

    def piece(self, output: CompletionOutput) -> Piece:
        """Return the new tokens without spans of weights; the last piece has a finish reason."""
        before = self.num_tokens
        reason = output.finish_reason
        if reason not in {None, *FinishReason}:
            raise SamplingError(f"vLLM ended a response with {reason!r}")
        stop = self._text.update(list(output.token_ids), reason == FinishReason.STOP)
        reason = reason if stop is None else FinishReason.STOP
        kept = slice(self.num_tokens - before)
        read = zip(output.token_ids[kept], (output.logprobs or [])[kept], strict=True)
        return Piece(
            call_id=self.call.id,
            tries=self.call.tries,
            prompt_ids=None if before else tuple(self.prompt_ids),
            tokens=tuple(self._token(token_id, logprobs) for token_id, logprobs in read),
            text=self._text.get_next_output_text(reason is not None, True),
            finish_reason=FinishReason(reason) if reason else None,
            stop_reason=output.stop_reason if stop is None else stop,
        )

    def _token(self, token_id: int, logprobs: Mapping[int, Logprob] | None) -> Token:
        if not logprobs or token_id not in logprobs:
            raise SamplingError("vLLM returned log-probs that are not those of the sampled tokens")
        likely = sorted(logprobs, key=lambda each: -logprobs[each].logprob)
        top = [each for each in likely if math.isfinite(logprobs[each].logprob)]
        ids = [token_id, *top[: self.call.sampling.top_logprobs]]
        own, *texts = (_text_of(self._tokenizer, each) for each in ids)
        values = [logprobs[each].logprob for each in ids]
        named = zip(ids[1:], texts, values[1:], strict=True)
        return Token(id=token_id, text=own, logprob=values[0], top=tuple(named))


@lru_cache(maxsize=2**18)
def _text_of(tokenizer: Any, token_id: int) -> str:
    return convert_ids_list_to_tokens(tokenizer, [token_id])[0]
