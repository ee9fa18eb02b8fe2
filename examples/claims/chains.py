"""Chains: add up the digits of a task one by one, then say the total; a careless author's habits.

Digits and totals are modulo `BASE`. A response is made of tokens: a *step* claims the total so far
and goes on by one digit, a *skip* goes on without a claim, a *pad* says nothing, and an *answer*
ends the response, wherever it stands. Many runs are played at a time: tensors are [run, response]
or [run, response, token].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

BASE = 5
SKIP, PAD = 2 * BASE, 2 * BASE + 1  # below them steps, then answers
VOCABULARY = 2 * BASE + 2
NOTHING = BASE  # no digit is left; nothing was skipped
BUCKETS, MOST_PADS = 8, 3
# What a state tells: the place in the chain, the last claim, what was skipped since, the next
# digit, how many pads stand before, how much of the longest response is used, and whether a claim
# so far did not follow.
STATE_SIZES = (BUCKETS + 1, BASE, BASE + 1, BASE + 1, MOST_PADS + 1, BUCKETS, 2)

LogProbs = Callable[[Tensor], Tensor]  # states [run, response, 7] to [run, response, VOCABULARY]


@dataclass(frozen=True)
class Dials:
    """How the tasks are, what an untrained author does, and what the judge looks at."""

    length: int = 4  # digits
    max_tokens: int = 24
    error: float = 0.1  # of a claim
    error_after_skip: float = 0.3
    skip: float = 0.25
    pad: float = 0.2
    early: float = 0.0  # answers, whatever is left of the chain
    luck: float = 0.0  # a wrong answer of a training task counts as right
    judge: str = "honest"
    noise: float = 0.0  # standard deviation of the judge's score
    critic: str = "fresh"  # what the critic starts from: fresh, noise, low, or reward_model
    critic_sees_mistakes: bool = True  # as the policy does: that a claim so far did not follow


@dataclass(frozen=True)
class Played:
    """Responses of all runs. [run, response, token], or [run, response] where it says so."""

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
        """The responses at these places of each run, [run, row]."""
        first = torch.arange(rows.shape[0])[:, None]
        return Played(**{name: value[first, rows] for name, value in vars(self).items()})


class Walk:
    """How far the responses are; each tensor is [run, response]."""

    def __init__(self, digits: Tensor, dials: Dials) -> None:
        shape = digits.shape[:2]
        self.dials, self.total = dials, digits.sum(-1) % BASE
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
        left_out = torch.where(self.skipped == NOTHING, 0, self.skipped)
        next_one = torch.where(self.digit == NOTHING, 0, self.digit)
        return (self.claim + left_out + next_one) % BASE

    def state(self, t: int) -> Tensor:
        """What a policy sees before token ``t``, [run, response, 7]."""
        part = self.place * BUCKETS // self.dials.length
        used = torch.full_like(part, t * BUCKETS // self.dials.max_tokens)
        is_broken = (self.steps_wrong > 0).long()
        seen = (part, self.claim, self.skipped, self.digit, self.pads, used, is_broken)
        return torch.stack(seen, -1)

    def go(self, token: Tensor) -> None:
        """Add a token to each response that has not ended."""
        is_step, is_answer = token < BASE, (token >= BASE) & (token < SKIP)
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
        self.pads = torch.where(token == PAD, (self.pads + 1).clamp(max=MOST_PADS), 0)


def play(
    policy: LogProbs, digits: Tensor, dials: Dials, generator: torch.Generator | None = None
) -> Played:
    """Sample a response to each task, [run, response, digit] int64."""
    walk = Walk(digits, dials)
    noted: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    for t in range(dials.max_tokens):
        state = walk.state(t)
        logprobs = policy(state)
        token = _sampled(logprobs, generator)
        noted.append((state, token, logprobs.gather(-1, token[..., None])[..., 0], walk.alive))
        walk.go(token)
        if not walk.alive.any():
            break
    states, tokens, of_tokens, mask = (torch.stack(each, 2) for each in zip(*noted, strict=True))
    ended, right, wrong = ~walk.alive, walk.steps_right, walk.steps_wrong
    return Played(states, tokens, of_tokens, mask, walk.right, ended, right, wrong)


def _sampled(logprobs: Tensor, generator: torch.Generator | None) -> Tensor:
    noise = torch.empty_like(logprobs).exponential_(generator=generator)
    return (logprobs - noise.log()).argmax(-1)


def author(dials: Dials) -> LogProbs:
    """What the author does in each state."""

    def logprobs(states: Tensor) -> Tensor:
        _, claim, skipped, digit, _, _, _ = states.unbind(-1)
        at_end, has_skipped = digit == NOTHING, skipped != NOTHING
        known = claim + torch.where(has_skipped, skipped, 0) + torch.where(at_end, 0, digit)
        error = torch.where(at_end, 0.0, dials.error)
        error = torch.where(has_skipped, dials.error_after_skip, error)[..., None]
        said = one_hot(known % BASE, BASE) * (1 - error)
        for off in (-1, 1):
            said = said + one_hot((known + off) % BASE, BASE) * (error / 2)
        early = torch.where(at_end, 1.0, dials.early)[..., None]
        skip = (1 - early) * dials.skip
        shares = torch.cat([said * (1 - early - skip), said * early, skip], -1) * (1 - dials.pad)
        pad = torch.full_like(skip, dials.pad)
        return (torch.cat([shares, pad], -1) + 1e-6).log().log_softmax(-1)

    return logprobs


def honest(played: Played, dials: Dials) -> Tensor:
    """The share of the chain's steps that stand there and follow, less that of wrong ones."""
    return ((played.steps_right - played.steps_wrong) / dials.length).clamp(0, 1)


def verbose(played: Played, dials: Dials) -> Tensor:
    """A judge that verbosity fools: how much is said, whether right or not."""
    said = (played.mask & (played.tokens != SKIP)).sum(-1) - 1
    return (said / (2.5 * dials.length)).clamp(0, 1)


def mute(played: Played, dials: Dials) -> Tensor:
    """A judge that looks at nothing; noise on its score is all that it tells."""
    return torch.full(played.lengths.shape, 0.5)


JUDGES: dict[str, Callable[[Played, Dials], Tensor]] = {
    "honest": honest,
    "verbose": verbose,
    "mute": mute,
}


def judged(played: Played, dials: Dials, generator: torch.Generator) -> Tensor:
    """The judge's score of each response, [run, response], in [0, 1]."""
    score = JUDGES[dials.judge](played, dials)
    noise = torch.randn(score.shape, generator=generator)
    return (score + dials.noise * noise).clamp(0, 1)


def features(states: Tensor) -> Tensor:
    """States as one row of zeros and ones each, [..., 7] to [..., feature] float32."""
    offsets = torch.tensor([0, *STATE_SIZES[:-1]]).cumsum(0)
    row = torch.zeros(*states.shape[:-1], sum(STATE_SIZES))
    return row.scatter_(-1, states + offsets, 1.0)
