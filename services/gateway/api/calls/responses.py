"""Answers in the shapes that OpenAI's and vLLM's clients read, as a whole and in chunks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

from protocol.calls import Token

from services.gateway.api.calls.requests import Request
from services.gateway.core.calls.desk import Answer

Json = dict[str, Any]
_HALF_A_CHARACTER = "\ufffd"


class Part(NamedTuple):
    """What is told at once of an answer: all of it, or what has come since the last chunk."""

    answer: Answer
    tokens: Sequence[Token]
    text: str
    is_first: bool = True


class Shape:
    """The answer to one request; how a choice looks is that of chats."""

    PREFIX: ClassVar[str] = "chatcmpl"  # of its id
    OBJECTS: ClassVar[tuple[str, str]] = ("chat.completion", "chat.completion.chunk")

    def __init__(self, answer_id: str, request: Request, answers: Sequence[Answer]) -> None:
        self.id, self.request, self.answers = answer_id, request, answers
        self.created = int(time.time())
        # How many tokens and characters are told of those that are open, by their place.
        self._told: dict[int, tuple[int, int]] = dict.fromkeys(range(len(answers)), (0, 0))

    def whole(self) -> Json:
        parts = (Part(answer, answer.tokens, answer.text) for answer in self.answers)
        choices = [self.choice(place, part) for place, part in enumerate(parts)]
        return self._object(0, choices) | {"usage": self.usage(), "weir": self.facts()}

    def chunks(self) -> Iterator[Json]:
        """One for each response of which something has come since the last time."""
        for place, (start, char) in list(self._told.items()):
            answer = self.answers[place]
            part = Part(answer, answer.tokens[start:], answer.text[char:], start + char == 0)
            self._told[place] = len(answer.tokens), len(answer.text)
            if answer.is_done:
                del self._told[place]
            elif not part.tokens and not part.text:
                continue
            chunk = self._object(1, [self.choice(place, part, "delta")], part.is_first)
            yield chunk | ({"weir": self.facts()} if answer.is_done else {})

    def usage_chunk(self) -> Json:
        return self._object(1, []) | {"usage": self.usage()}

    def _object(self, which: int, choices: list[Json], with_prompt: bool = True) -> Json:
        told: Json = {
            "id": self.id,
            "object": self.OBJECTS[which],
            "created": self.created,
            "model": self.request.model,
            "choices": choices,
        }
        if self.request.return_token_ids and with_prompt and choices:
            told["prompt_token_ids"] = self.answers[choices[0]["index"]].prompt_ids
        return told

    def choice(self, place: int, part: Part, key: str = "message") -> Json:
        said = {"role": "assistant"} if part.is_first else {}
        return {key: {**said, "content": part.text}, **self._ending(place, part)}

    def _ending(self, place: int, part: Part) -> Json:
        """What the choices of all shapes have."""
        answer, has_logprobs = part.answer, self.request.sampled.num_likely is not None
        return {
            "index": place,
            "logprobs": self.logprobs(part) if has_logprobs else None,
            "finish_reason": answer.finish_reason if answer.is_done else None,
            "stop_reason": answer.stop_reason if answer.is_done else None,
            **({"token_ids": _ids(part)} if self.request.return_token_ids else {}),
        }

    def logprobs(self, part: Part) -> Json:
        content = [
            self.likely(token.id, token.text, token.logprob)
            | {"top_logprobs": [self.likely(*each) for each in token.top]}
            for token in part.tokens
        ]
        return {"content": content, "refusal": None}

    @staticmethod
    def likely(token_id: int, text: str, logprob: float) -> Json:
        is_whole = _HALF_A_CHARACTER not in text
        return {"token": text, "logprob": logprob, "bytes": [*text.encode()] if is_whole else None}

    def usage(self) -> Json:
        firsts = self.answers[:: self.request.sampled.n]
        of_prompts = sum(len(answer.prompt_ids) for answer in firsts)
        sampled = sum(len(answer.tokens) for answer in self.answers)
        told = {"prompt_tokens": of_prompts, "completion_tokens": sampled}
        return told | {"total_tokens": of_prompts + sampled}

    def facts(self) -> Json:
        """Which weights sampled which tokens of each choice, and where."""
        rollouts = (rollout for answer in self.answers for rollout in answer.rollouts)
        return {
            "model": self.answers[0].call.served.name,
            "prompt_template": self.answers[0].call.served.model.prompt_template,
            "rollouts": sorted(set(rollouts)),
            "weight_versions": [_spans(answer) for answer in self.answers],
        }


class Completion(Shape):
    PREFIX: ClassVar[str] = "cmpl"
    OBJECTS: ClassVar[tuple[str, str]] = ("text_completion", "text_completion")

    def choice(self, place: int, part: Part, key: str = "") -> Json:
        told = {"text": part.text, **self._ending(place, part)}
        if self.request.return_token_ids and part.is_first:
            told["prompt_token_ids"] = part.answer.prompt_ids
        return told

    def logprobs(self, part: Part) -> Json:
        likely = [{text: logprob for _, text, logprob in token.top} for token in part.tokens]
        return {
            "tokens": [token.text for token in part.tokens],
            "token_logprobs": [token.logprob for token in part.tokens],
            "top_logprobs": likely if self.request.sampled.num_likely else None,
            "text_offset": None,  # a character may be of several tokens
        }


class Generated(Shape):
    """vLLM's answer in tokens, whose log-probs say the token in both ways that clients read."""

    PREFIX: ClassVar[str] = "gen"

    def choice(self, place: int, part: Part, key: str = "") -> Json:
        told = {"token_ids": _ids(part), "weight_versions": _spans(part.answer)}
        return self._ending(place, part) | told

    @staticmethod
    def likely(token_id: int, text: str, logprob: float) -> Json:
        return {"token": f"token_id:{token_id}", "token_id": token_id, "logprob": logprob}

    def _object(self, which: int, choices: list[Json], with_prompt: bool = True) -> Json:
        return super()._object(which, choices, with_prompt) | {"request_id": self.id}


def _ids(part: Part) -> list[int]:
    return [token.id for token in part.tokens]


def _spans(answer: Answer) -> list[Json]:
    return [span.model_dump() for span in answer.spans]
