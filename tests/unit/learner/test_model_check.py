"""A model that cannot be trained exactly is refused before any rank loads it."""

import pytest
from protocol.placement import PlacementError, parse
from protocol.recipe import Lora

from services.chassis.renderer import Vocabulary
from services.learner.training.model_check import (
    UnsupportedModel,
    check_split,
    check_targets,
    check_vocabulary,
)
from tests.unit.learner.conftest import BASE_MODEL, Changed


def test_an_adapter_is_for_linear_layers_that_the_policy_has() -> None:
    check_targets(BASE_MODEL, None)
    check_targets(BASE_MODEL, Lora())
    check_targets(BASE_MODEL, Lora(targets=("q_proj", "down_proj")))
    for target in ("lm_head", "query"):  # the head's weight is used without the head
        with pytest.raises(UnsupportedModel, match=rf"model\.lora\.targets: .* {target};"):
            check_targets(BASE_MODEL, Lora(targets=("q_proj", target)))


def test_a_critic_must_read_what_the_policy_writes(changed: Changed) -> None:
    vocabulary = Vocabulary(digest="own", max_id=95, end_id=2)
    check_vocabulary(
        BASE_MODEL, changed(vocab_size=128), vocabulary, vocabulary
    )  # rows that no token uses
    check_vocabulary(BASE_MODEL, changed(vocab_size=96), vocabulary, vocabulary)
    with pytest.raises(UnsupportedModel, match=r"critic\.path: .* 95 tokens"):
        check_vocabulary(BASE_MODEL, changed(vocab_size=95), vocabulary, vocabulary)
    with pytest.raises(UnsupportedModel, match=r"critic\.path: .* vocabulary"):
        check_vocabulary(BASE_MODEL, BASE_MODEL, vocabulary, vocabulary._replace(digest="other"))


def test_an_engine_that_the_heads_cannot_be_split_over_is_refused(changed: Changed) -> None:
    check_split(BASE_MODEL, None)  # of one GPU each, or on CPUs
    check_split(BASE_MODEL, parse("learner=0 rollout=1,2 rollout=3"))
    with pytest.raises(PlacementError, match=r"model\.path: .* rollout=1-3: .*WEIR_GPUS"):
        check_split(BASE_MODEL, parse("learner=0 rollout=1-3"))
    ungrouped = changed(num_attention_heads=6, num_key_value_heads=None)
    with pytest.raises(PlacementError, match="6 attention"):
        check_split(ungrouped, parse("learner=0 rollout=1-4"))


def test_a_critic_needs_no_row_that_the_policy_lacks(changed: Changed) -> None:
    vocabulary = Vocabulary(digest="own", max_id=96, end_id=2)  # one id more than rows, as Gemma 3
    check_vocabulary(BASE_MODEL, BASE_MODEL, vocabulary, vocabulary)
