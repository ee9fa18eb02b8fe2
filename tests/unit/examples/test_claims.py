"""The claims: responses are graded as they should be, and arms train by their recipes' words."""

from functools import partial

import pytest
import torch
from torch import Tensor

from examples.claims import report, training
from examples.claims.chains import BASE, PAD, SKIP, VOCABULARY, Dials, honest, play, verbose
from examples.claims.nets import imitations
from examples.claims.registered import TRIALS
from examples.claims.report import holm, verdicts
from examples.claims.training import Training, World
from tests.tables import table

DIGITS = [1, 2, 3, 4]  # totals 1, 3, 1, 0 modulo 5


@pytest.fixture
def poor_base_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "imitations", partial(imitations, updates=20))


@table("""
    text            | is_right | share | said
    1 3 1 0 =0      | True     | 1.0   | 0.4
    1 s 1 p 0 =0    | True     | 0.75  | 0.4
    s s s 0 =0      | True     | 0.25  | 0.1
    1 4 2 1 =1      | False    | 0.5   | 0.4
    1 4 1 0 =0      | True     | 0.0   | 0.4
    =0              | True     | 0.0   | 0.0
    1 3 1 0 p p p p | False    | 1.0   | 0.7
""")
def test_responses_are_graded(text: str, is_right: bool, share: float, said: float) -> None:
    """A wrong step from which others follow, two mistakes that are right by luck, one cut off."""
    special = {"s": SKIP, "p": PAD}
    tokens = [
        BASE + int(word[1:]) if word[0] == "=" else special.get(word) or int(word)
        for word in text.split()
    ]
    dials, script = Dials(max_tokens=8), iter(tokens)

    def policy(states: Tensor) -> Tensor:
        logprobs = torch.full((*states.shape[:-1], VOCABULARY), -1e9)
        logprobs[..., next(script)] = 0.0
        return logprobs

    played = play(policy, torch.tensor([[DIGITS]]), dials)
    assert played.tokens.flatten().tolist() == tokens
    assert (bool(played.right), bool(played.ended)) == (is_right, tokens[-1] != PAD)
    assert honest(played, dials).item() == pytest.approx(share)
    assert verbose(played, dials).item() == pytest.approx(said)


@pytest.mark.usefixtures("poor_base_model")
def test_dynamic_sampling_trains_on_groups_with_a_signal_alone() -> None:
    arms = TRIALS["ladder"].arms
    played = Training(World(Dials(luck=0.9)), {n: arms[n] for n in arms if "+ " in n}, [100])
    batch = played._select(played._sample())
    of_groups = batch.correct.unflatten(1, (-1, 8)).float().mean(-1)
    varies = (of_groups > 0) & (of_groups < 1)
    is_used = batch.in_loss.any(-1).unflatten(1, (-1, 8)).any(-1)
    assert not varies[:-1].all()
    assert is_used[:-1].all()
    assert varies[-1].all()
    assert is_used[-1].all()


def test_verdicts_allow_for_the_number_of_claims() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    found = verdicts({"a": [1.0, 1.1, 0.9], "b": [-1.0, -1.1, -0.9], "c": [1.0, 2.5, -0.5]})
    assert [verdict for _, verdict in found.values()] == ["**held**", "**reversed**", "not shown"]
    result = {"date": "2000-01-01", "registration": "x", "first_seed": 0, "seconds": 60}
    row = report.table({**result, "differences": {"exhaustion": [0.1, 0.2, 0.3]}}).splitlines()[-1]
    assert "+0.200 ± 0.248" in row
