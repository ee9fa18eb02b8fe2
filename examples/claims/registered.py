"""The claims of each paper, written down before a run.

A claim adds up means of a metric over steps, each of an arm of one world and with a sign, so that
by its paper the sum is above 0. It holds if that is so at 95 % over all claims together. Change
nothing here for a result: add a claim, and run all again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from protocol.recipe import Algorithm
from protocol.rewards import Reward

from examples.claims.chains import Dials
from examples.claims.training import Arm, World

FIRST_SEED = 60  # of the reported run; tuning has those from 100 on, earlier runs those below

PAPO = "PAPO, arXiv:2603.26535"
DAPO = "DAPO, arXiv:2503.14476"
VAPO = "VAPO, arXiv:2504.05118"
OURS = "ours"  # no paper says so: seen in tuning or an earlier run, registered like the others

Term = tuple[int, str, str, tuple[int, int]]  # sign, arm, metric, first step and the one after last


@dataclass(frozen=True)
class Claim:
    name: str
    says: str
    source: str
    terms: tuple[Term, ...]


@dataclass(frozen=True)
class Trial:
    """A world, the arms that train in it, and the claims that are tested there."""

    world: World
    arms: Mapping[str, Arm]
    claims: tuple[Claim, ...]
    num_seeds: int = 24

    @property
    def work(self) -> int:
        """Tokens that are sampled in all runs, at most."""
        world = self.world
        drops = any(arm.dynamic_sampling for arm in self.arms.values())
        responses = world.responses * (world.oversampling if drops else 1)
        return self.num_seeds * len(self.arms) * world.steps * responses * world.dials.max_tokens


def above(upper: str, lower: str, metric: str, steps: tuple[int, int]) -> tuple[Term, Term]:
    return (1, upper, metric, steps), (-1, lower, metric, steps)


def rises(arm: str, metric: str, first: tuple[int, int], last: tuple[int, int]) -> tuple[Term, ...]:
    return (1, arm, metric, last), (-1, arm, metric, first)


def falls(arm: str, metric: str, first: tuple[int, int], last: tuple[int, int]) -> tuple[Term, ...]:
    return rises(arm, metric, last, first)


def _arm(advantage: str, reward: Mapping[str, Any] | None = None, **settings: Any) -> Arm:
    """Make an arm of settings of the recipe's algorithm and fields of `Arm`."""
    fields = {name: settings.pop(name) for name in [*settings] if name in Arm.__dataclass_fields__}
    algorithm = Algorithm.model_validate({"advantage": advantage, **settings})
    return Arm(algorithm, Reward.model_validate(reward or {}), **fields)


ALL_JUDGED = {"process_for": "all"}
ORM = _arm("grpo")
PAPO_ARM = _arm("papo")
_FULL_NORM = _arm("papo_full_norm")
_PROCESS_ONLY = _arm("process_only", ALL_JUDGED)

# Four digits, an honest judge, and no luck.
_PLAIN = Trial(
    World(Dials(), steps=200),
    {"orm": ORM, "papo": PAPO_ARM},
    (
        Claim(
            "exhaustion",
            "with outcomes alone, ever more groups teach nothing",
            PAPO,
            rises("orm", "silent", (0, 20), (180, 200)),
        ),
        Claim(
            "papo's remedy without luck",
            "fewer groups teach PAPO nothing than its outcome-only twin",
            PAPO,
            above("orm", "papo", "silent", (180, 200)),
        ),
        Claim(
            "papo without luck",
            "PAPO ends above its outcome-only twin where no wrong answer passes",
            PAPO,
            above("papo", "orm", "accuracy", (180, 200)),
        ),
    ),
)

# Twelve digits; half of the wrong answers count as right.
_LUCK = Trial(
    World(Dials(length=12, max_tokens=48, error=0.05, luck=0.5), steps=200, learning_rate=1e-3),
    {
        "orm": ORM,
        "papo": PAPO_ARM,
        "multiplicative": _arm("multiplicative"),
        "full norm": _FULL_NORM,
    },
    (
        Claim(
            "papo's remedy",
            "fewer groups teach PAPO nothing, where wrong derivations often pass",
            PAPO,
            above("orm", "papo", "silent", (180, 200)),
        ),
        Claim(
            "papo with luck",
            "PAPO ends above its outcome-only twin where wrong derivations often pass",
            PAPO,
            above("papo", "orm", "accuracy", (180, 200)),
        ),
        Claim(
            "gap grows",
            "the gap between PAPO and its twin grows during training",
            PAPO,
            (
                *above("papo", "orm", "accuracy", (180, 200)),
                *above("orm", "papo", "accuracy", (20, 40)),
            ),
        ),
        Claim(
            "papo over multiplicative",
            "PAPO is above outcome times process",
            PAPO,
            above("papo", "multiplicative", "accuracy", (180, 200)),
        ),
        Claim(
            "papo over full norm",
            "PAPO is above normalizing over all responses",
            PAPO,
            above("papo", "full norm", "accuracy", (180, 200)),
        ),
    ),
)

_NOISY = Trial(
    replace(_LUCK.world, dials=replace(_LUCK.world.dials, noise=0.3)),
    {"orm": ORM, "papo": PAPO_ARM},
    (
        Claim(
            "noisy judge",
            "PAPO is above its twin with a judge that errs by 0.3, too",
            OURS,
            above("papo", "orm", "accuracy", (180, 200)),
        ),
    ),
)

# A judge that rewards length.
_VERBOSE = Trial(
    World(Dials(judge="verbose"), steps=120),
    {"orm": ORM, "papo": PAPO_ARM, "process only": _PROCESS_ONLY, "full norm": _FULL_NORM},
    (
        Claim(
            "process only: accuracy",
            "the process score alone is hacked: accuracy falls",
            PAPO,
            falls("process only", "accuracy", (0, 5), (100, 120)),
        ),
        Claim(
            "process only: score",
            "and the judge's score rises meanwhile",
            PAPO,
            rises("process only", "judge", (0, 5), (100, 120)),
        ),
        Claim(
            "papo is not hacked",
            "PAPO's accuracy rises with the same judge",
            PAPO,
            rises("papo", "accuracy", (0, 5), (100, 120)),
        ),
        Claim(
            "fooled: papo over full norm",
            "PAPO is above normalizing over all responses, with such a judge",
            PAPO,
            above("papo", "full norm", "accuracy", (100, 120)),
        ),
        Claim(
            "fooled: orm over papo",
            "a judge that can be fooled puts PAPO below its outcome-only twin",
            OURS,
            above("orm", "papo", "accuracy", (100, 120)),
        ),
    ),
)


# The papers' settings of the policy's loss. Here and in the worlds of clip-higher a step has 16
# updates, so that ratios can leave the bounds.
_NAIVE = {"clip_low": 0.2, "clip_high": 0.2, "aggregation": "sequence_mean"}
_HIGHER = {**_NAIVE, "clip_high": 0.28}
_SIGNS = {"values": (-1.0, 1.0)}
_FILTER = {**_SIGNS, "overlong_filter": True}
_SOFT = {**_SIGNS, "overlong_buffer": 6}  # instead of the filter, as in the recipes
_LADDER = {
    "grpo": _arm("grpo", _SIGNS, **_NAIVE),
    "+ overlong filter": _arm("grpo", _FILTER, **_NAIVE),
    "+ clip-higher": _arm("grpo", _FILTER, **_HIGHER),
    "+ soft overlong": _arm("grpo", _SOFT, **_HIGHER),
    "+ token mean": _arm("grpo", _SOFT),
    "+ dynamic sampling": _arm("grpo", _SOFT, dynamic_sampling=True),
}
_REPLACES = {"+ soft overlong": " (where the punishment replaces the filter)"}

# Padding, a tight limit, and groups that run out of signal.
_DAPO = Trial(
    World(
        Dials(length=8, pad=0.4, max_tokens=18, luck=0.5, error=0.05),
        steps=60,
        responses=128,
        updates=16,
        learning_rate=2e-3,
    ),
    {**_LADDER, "no filter": _arm("grpo", _SIGNS, **_HIGHER)},
    (
        Claim(
            "dapo over grpo",
            "DAPO is above GRPO",
            DAPO,
            above("+ dynamic sampling", "grpo", "accuracy", (40, 60)),
        ),
        *(
            Claim(
                f"rung: {rung.removeprefix('+ ')}",
                f"{rung.removeprefix('+ ')} adds to what was before{_REPLACES.get(rung, '')}",
                DAPO,
                above(rung, before, "accuracy", (40, 60)),
            )
            for before, rung in pairwise(_LADDER)
        ),
        Claim(
            "soft overlong alone",
            "the soft overlong punishment adds to clip-higher without a filter",
            DAPO,
            above("+ soft overlong", "no filter", "accuracy", (40, 60)),
        ),
    ),
)

# Many updates of a step, so that ratios leave the bounds, and few tokens that do not matter.
_CLIP_WORLD = World(
    Dials(length=12, max_tokens=36, error=0.05, pad=0.1, error_after_skip=0.2, skip=0.1, luck=0.5),
    steps=50,
    responses=128,
    updates=16,
    learning_rate=5e-3,
)


_BOUNDS = (0.2, 0.28)
_CLIP = Trial(
    _CLIP_WORLD,
    {f"{bound:.2f}": _arm("grpo", clip_high=bound) for bound in _BOUNDS},
    (
        Claim(
            "clip-higher: entropy",
            "a higher upper bound keeps entropy up",
            DAPO,
            above("0.28", "0.20", "entropy", (30, 50)),
        ),
        Claim(
            "clip-higher: accuracy",
            "and accuracy with it",
            DAPO,
            above("0.28", "0.20", "accuracy", (30, 50)),
        ),
    ),
    num_seeds=40,
)
# A score without information: only the drift that the bounds make remains.
_CLIP_NOISE = Trial(
    replace(_CLIP_WORLD, dials=replace(_CLIP_WORLD.dials, judge="mute", noise=0.5)),
    {f"{bound:.2f}": _arm("process_only", ALL_JUDGED, clip_high=bound) for bound in _BOUNDS},
    (
        Claim(
            "clip-higher, noise",
            "a higher upper bound keeps entropy up, even if rewards are noise",
            OURS,
            above("0.28", "0.20", "entropy", (30, 50)),
        ),
    ),
)

_GAE = {"length_alpha": 0.05, "lambda_critic": 1.0, "positive_lm_weight": 0.1}


def _vapo(advantage: str = "length_adaptive_gae", **instead: Any) -> Arm:
    return _arm(advantage, **{**_GAE, "pretrain_steps": 50, **instead})


_PPO = _arm("gae", lambda_actor=0.95, **_NAIVE, group_size=1)
_ABLATIONS = {
    "value pretraining": _vapo(pretrain_steps=0),
    "decoupled GAE": _arm("gae", lambda_actor=0.95, positive_lm_weight=0.1, pretrain_steps=50),
    "length-adaptive GAE": _vapo("decoupled_gae", lambda_actor=0.95),
    "clip-higher": _vapo(clip_high=0.2),
    "token mean": _vapo(aggregation="sequence_mean"),
    "positive LM loss": _vapo(positive_lm_weight=0.0),
    "group sampling": _vapo(group_size=1),
}

# Forty digits: answers of fifty tokens, one mistake in which is enough.
_CHAIN = Dials(
    length=40, max_tokens=100, error=0.02, error_after_skip=0.1, skip=0.05, pad=0.2, early=0.002
)
_ALSO = {
    "decoupled GAE": " (and without the adaptive lambda)",
    "length-adaptive GAE": " (the adaptive lambda is 0.6 here, below the fixed 0.95)",
}
_LONG_DAPO = _arm("grpo", {**_SIGNS, "overlong_buffer": 20}, dynamic_sampling=True)
_LONG = Trial(
    World(_CHAIN, steps=60, updates=4, oversampling=2),
    {"vapo": _vapo(), "ppo": _PPO, "dapo": _LONG_DAPO, "alpha 1": _vapo(length_alpha=1.0)}
    | {f"without {part}": arm for part, arm in _ABLATIONS.items()},
    (
        Claim(
            "vapo over ppo", "VAPO is above PPO", VAPO, above("vapo", "ppo", "accuracy", (40, 60))
        ),
        Claim(
            "vapo over dapo",
            "VAPO is above DAPO",
            VAPO,
            above("vapo", "dapo", "accuracy", (40, 60)),
        ),
        *(
            Claim(
                f"vapo needs {part}",
                f"without {part} VAPO ends lower{_ALSO.get(part, '')}",
                VAPO,
                above("vapo", f"without {part}", "accuracy", (40, 60)),
            )
            for part in _ABLATIONS
        ),
        Claim(
            "alpha 1",
            "a larger length-adaptive lambda (0.98, by an alpha of 1) does better than 0.95",
            OURS,
            above("alpha 1", "without length-adaptive GAE", "accuracy", (40, 60)),
        ),
    ),
)

# The same with a critic that is not told whether a mistake was made.
_LONG_BLIND = Trial(
    replace(_LONG.world, dials=replace(_CHAIN, critic_sees_mistakes=False)),
    {name: _LONG.arms[name] for name in ("vapo", "ppo", "dapo")},
    tuple(
        Claim(
            f"blind: vapo over {other}",
            f"VAPO is above {other.upper()} where the critic cannot see a mistake",
            OURS,
            above("vapo", other, "accuracy", (40, 60)),
        )
        for other in ("ppo", "dapo")
    ),
)

# A critic that expects too little of an unfinished answer, and learns slowly.
_LOW = Trial(
    World(
        replace(_CHAIN, early=0.02, critic="low"),
        steps=60,
        updates=4,
        critic_learning_rate=1e-3,
    ),
    {"vapo": _vapo(), "without value pretraining": _ABLATIONS["value pretraining"]},
    (
        Claim(
            "low critic: accuracy",
            "with a critic that starts by saying -1 and learns slowly, value pretraining is needed",
            VAPO,
            above("vapo", "without value pretraining", "accuracy", (40, 60)),
        ),
        Claim(
            "low critic: length",
            "without it answers collapse in length",
            VAPO,
            above("vapo", "without value pretraining", "length", (40, 60)),
        ),
    ),
)

# A critic from a reward model: an answer that has not ended is a wrong one.
_REWARD_MODEL = Trial(
    replace(_LOW.world, dials=replace(_LOW.world.dials, critic="reward_model")),
    _LOW.arms,
    (
        Claim(
            "reward model",
            "with a critic from a reward model, value pretraining is needed",
            VAPO,
            above("vapo", "without value pretraining", "accuracy", (40, 60)),
        ),
    ),
)

_LAMBDAS = {"adaptive": _vapo(positive_lm_weight=0.0)} | {
    f"{fixed}": _vapo("decoupled_gae", lambda_actor=fixed, positive_lm_weight=0.0)
    for fixed in (0.3, 0.95)
}
_SHORT_CHAIN = Dials(
    length=8, max_tokens=24, error=0.08, error_after_skip=0.2, skip=0.1, pad=0.2, early=0.005
)


def _lambda_trial(dials: Dials, arms: Mapping[str, Arm], *claims: Claim) -> Trial:
    return Trial(World(dials, steps=50, updates=4, critic_learning_rate=1e-3), arms, claims)


# The lambdas of the policy alone, without the positive LM loss.
_HUNDRED = _lambda_trial(
    replace(_CHAIN, length=100, max_tokens=180, error=0.01, error_after_skip=0.05, early=0.001),
    _LAMBDAS,
    Claim(
        "adaptive lambda, long: 0.95",
        "on long answers the length-adaptive lambda (0.8) does better than 0.95",
        VAPO,
        above("adaptive", "0.95", "accuracy", (30, 50)),
    ),
    Claim(
        "adaptive lambda, long: 0.3",
        "and better than 0.3",
        OURS,
        above("adaptive", "0.3", "accuracy", (30, 50)),
    ),
)
_EIGHT = _lambda_trial(
    _SHORT_CHAIN,
    _LAMBDAS,
    *(
        Claim(
            f"adaptive lambda, short: {fixed}",
            f"on short answers the length-adaptive lambda (0) does better than {fixed}",
            OURS,
            above("adaptive", fixed, "accuracy", (30, 50)),
        )
        for fixed in ("0.95", "0.3")
    ),
)
_NOISE_CRITIC = _lambda_trial(
    replace(_SHORT_CHAIN, critic="noise"),
    {name: replace(_LAMBDAS[name], pretrain_steps=0) for name in ("adaptive", "0.95")},
    Claim(
        "adaptive lambda, critic of noise",
        "on short answers, with an untaught critic of noise, 0.95 does better than adaptive",
        OURS,
        above("0.95", "adaptive", "accuracy", (30, 50)),
    ),
)

TRIALS: dict[str, Trial] = {
    "plain": _PLAIN,
    "luck": _LUCK,
    "noisy judge": _NOISY,
    "verbose judge": _VERBOSE,
    "ladder": _DAPO,
    "clip": _CLIP,
    "clip, noise": _CLIP_NOISE,
    "long": _LONG,
    "long, blind": _LONG_BLIND,
    "low critic": _LOW,
    "reward model": _REWARD_MODEL,
    "hundred digits": _HUNDRED,
    "eight digits": _EIGHT,
    "eight digits, critic of noise": _NOISE_CRITIC,
}
CLAIMS = {claim.name: claim for trial in TRIALS.values() for claim in trial.claims}


def registration() -> str:
    """Return a digest of the sources that determine a result."""
    names = ("chains", "nets", "training", "registered")
    sources = [Path(__file__).with_name(f"{name}.py").read_bytes() for name in names]
    return hashlib.sha256(b"".join(sources)).hexdigest()[:12]
