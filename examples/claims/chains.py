"""Chains: add up the digits of a task one by one, then answer; and a careless author of chains.

Digits and totals are modulo `BASE`. A response consists of tokens: a *step* claims the total so far
and moves to the next digit, a *skip* moves without a claim, a *pad* does nothing, and an *answer*
ends the response. Many runs are played at a time: tensors are [run, response] or
[run, response, token].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

BASE = 5
# Tokens below SKIP are steps, then answers.
SKIP = 2 * BASE
PAD = 2 * BASE + 1
VOCABULARY = 2 * BASE + 2
NOTHING = BASE  # in the place of a digit: the chain is over, or nothing was skipped
BUCKETS = 8
MAX_PADS = 3
# The numbers of a state: the place in the chain, the last claim, the sum skipped since, the next
# digit, the pads before, the used share of the longest response, and whether a claim was wrong.
STATE_SIZES = (BUCKETS + 1, BASE, BASE + 1, BASE + 1, MAX_PADS + 1, BUCKETS, 2)

LogProbs = Callable[[Tensor], Tensor]  # states [run, response, 7] to [run, response, VOCABULARY]


@dataclass(frozen=True)
class Dials:
    """Properties of tasks, author, judge and critic."""

    length: int = 4  # digits
    max_tokens: int = 24
    error: float = 0.1  # of a claim
    error_after_skip: float = 0.3
    skip: float = 0.25
    pad: float = 0.2
    early: float = 0.0  # answers before the end of the chain
    luck: float = 0.0  # a wrong answer of a training task counts as right
    judge: str = "honest"
    noise: float = 0.0  # standard deviation of the judge's score
    critic: str = "fresh"  # its start: fresh, noise, low, or reward_model
    critic_sees_mistakes: bool = True  # the last number of a state


@dataclass(frozen=True)
class Played:
    """Responses of all runs, [run, response, token] unless another shape is given."""

    states: Tensor  # int64, 7 numbers each
    tokens: Tensor  # int64
    logprobs: Tensor  # of the tokens, by the policy that sampled
    mask: Tensor  # bool, the tokens up to the end of each response
    right: Tensor  # [run, response] bool: the answer is the total
    ended: Tensor  # [run, response] bool: not cut off at the limit
    steps_right: Tensor  # [run, response] int64
    steps_wrong: Tensor

    @property
    def lengths(self) -> Tensor:
        return self.mask.sum(-1)

    def rows(self, rows: Tensor) -> Played:
        """Return the responses at these places of each run, [run, row]."""
        first = torch.arange(rows.shape[0])[:, None]
        return Played(**{name: value[first, rows] for name, value in vars(self).items()})


class Walk:
    """The state of all responses; each tensor is [run, response]."""

    def __init__(self, digits: Tensor, dials: Dials) -> None:
        shape = digits.shape[:2]
        self.dials = dials
        self.total = digits.sum(-1) % BASE
        self.digits = torch.cat([digits, torch.full((*shape, 1), NOTHING)], -1)
        self.place, self.claim, self.pads = torch.zeros(3, *shape, dtype=torch.long)
        self.steps_right, self.steps_wrong = torch.zeros(2, *shape, dtype=torch.long)
        self.skipped = torch.full(shape, NOTHING)
        self.alive = torch.ones(shape, dtype=torch.bool)
        self.right = torch.zeros(shape, dtype=torch.bool)

    @property
    def digit(self) -> Tensor:
        return self.digits.gather(-1, self.place[..., None])[..., 0]

    @property
    def due(self) -> Tensor:
        """The total that follows from the last claim."""
        skipped = torch.where(self.skipped == NOTHING, 0, self.skipped)
        next_digit = torch.where(self.digit == NOTHING, 0, self.digit)
        return (self.claim + skipped + next_digit) % BASE

    def state(self, t: int) -> Tensor:
        """Return the policy's input before token ``t``, [run, response, 7]."""
        part = self.place * BUCKETS // self.dials.length
        used = torch.full_like(part, t * BUCKETS // self.dials.max_tokens)
        is_broken = (self.steps_wrong > 0).long()
        numbers = (part, self.claim, self.skipped, self.digit, self.pads, used, is_broken)
        return torch.stack(numbers, -1)

    def go(self, token: Tensor) -> None:
        """Add a token to each response that has not ended."""
        is_step = token < BASE
        is_answer = (token >= BASE) & (token < SKIP)
        moves = (is_step | (token == SKIP)) & (self.digit != NOTHING)
        follows = moves & (token == self.due)
        self.steps_right = self.steps_right + (self.alive & is_step & follows)
        self.steps_wrong = self.steps_wrong + (self.alive & is_step & ~follows)
        self.right = self.right | (self.alive & is_answer & (token - BASE == self.total))
        self.alive = self.alive & ~is_answer
        already = torch.where(self.skipped == NOTHING, 0, self.skipped)
        with_digit = torch.where(moves, (already + self.digit) % BASE, self.skipped)
        self.skipped = torch.where(is_step, NOTHING, with_digit)
        self.claim = torch.where(is_step, token, self.claim)
        self.place = self.place + moves
        self.pads = torch.where(token == PAD, (self.pads + 1).clamp(max=MAX_PADS), 0)


def play(
    policy: LogProbs, digits: Tensor, dials: Dials, generator: torch.Generator | None = None
) -> Played:
    """Sample a response to each task, [run, response, digit] int64."""
    walk = Walk(digits, dials)
    trace: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    for t in range(dials.max_tokens):
        state = walk.state(t)
        logprobs = policy(state)
        token = _sample(logprobs, generator)
        token_logprobs = logprobs.gather(-1, token[..., None])[..., 0]
        trace.append((state, token, token_logprobs, walk.alive))
        walk.go(token)
        if not walk.alive.any():
            break
    states, tokens, token_logprobs, mask = (
        torch.stack(tensors, 2) for tensors in zip(*trace, strict=True)
    )
    return Played(
        states,
        tokens,
        token_logprobs,
        mask,
        right=walk.right,
        ended=~walk.alive,
        steps_right=walk.steps_right,
        steps_wrong=walk.steps_wrong,
    )


def _sample(logprobs: Tensor, generator: torch.Generator | None) -> Tensor:
    noise = torch.empty_like(logprobs).exponential_(generator=generator)
    return (logprobs - noise.log()).argmax(-1)


def author(dials: Dials) -> LogProbs:
    """Return the author's policy."""

    def logprobs(states: Tensor) -> Tensor:
        _, claim, skipped, digit, _, _, _ = states.unbind(-1)
        at_end = digit == NOTHING
        has_skipped = skipped != NOTHING
        total = claim + torch.where(has_skipped, skipped, 0) + torch.where(at_end, 0, digit)
        error = torch.where(at_end, 0.0, dials.error)
        error = torch.where(has_skipped, dials.error_after_skip, error)[..., None]
        claims = one_hot(total % BASE, BASE) * (1 - error)
        for off in (-1, 1):
            claims = claims + one_hot((total + off) % BASE, BASE) * (error / 2)
        early = torch.where(at_end, 1.0, dials.early)[..., None]
        skip = (1 - early) * dials.skip
        moves = [claims * (1 - early - skip), claims * early, skip]
        shares = torch.cat(moves, -1) * (1 - dials.pad)
        pad = torch.full_like(skip, dials.pad)
        return (torch.cat([shares, pad], -1) + 1e-6).log().log_softmax(-1)

    return logprobs


def honest(played: Played, dials: Dials) -> Tensor:
    """Return the share of the chain's steps that are right, minus the share of wrong ones."""
    return ((played.steps_right - played.steps_wrong) / dials.length).clamp(0, 1)


def verbose(played: Played, dials: Dials) -> Tensor:
    """Return a score that rises with length: a judge that verbosity fools."""
    length = (played.mask & (played.tokens != SKIP)).sum(-1) - 1
    return (length / (2.5 * dials.length)).clamp(0, 1)


def mute(played: Played, dials: Dials) -> Tensor:
    """Return the same score for every response."""
    return torch.full(played.lengths.shape, 0.5)


JUDGES: dict[str, Callable[[Played, Dials], Tensor]] = {
    "honest": honest,
    "verbose": verbose,
    "mute": mute,
}


def judge(played: Played, dials: Dials, generator: torch.Generator) -> Tensor:
    """Return the judge's score of each response, [run, response], in [0, 1]."""
    score = JUDGES[dials.judge](played, dials)
    noise = torch.randn(score.shape, generator=generator)
    return (score + dials.noise * noise).clamp(0, 1)


def features(states: Tensor) -> Tensor:
    """Encode states as rows of zeros and ones, [..., 7] to [..., feature] float32."""
    offsets = torch.tensor([0, *STATE_SIZES[:-1]]).cumsum(0)
    row = torch.zeros(*states.shape[:-1], sum(STATE_SIZES))
    return row.scatter_(-1, states + offsets, 1.0)
