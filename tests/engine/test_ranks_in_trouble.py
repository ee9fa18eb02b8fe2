"""Sums in bfloat16, numbers that are not finite, ranks that fail: each by a script of its own."""

import json

import pytest

from tests.engine.test_training_engine import SCRIPT, run

pytestmark = pytest.mark.engine


def test_in_bfloat16_many_micro_batches_add_up_to_as_much() -> None:
    ended = run([str(SCRIPT.with_name("accumulate.py"))])
    assert ended.returncode == 0, ended.stderr[-3000:]
    errors = json.loads(ended.stdout.splitlines()[-1])
    print(errors)
    # A sum in bfloat16 is 2 % off; each micro-batch's own gradient is rounded to about 0.2 %.
    assert len(errors) == 6
    assert all(error < 0.004 for error in errors.values())


def test_what_is_rehearsed_or_not_finite_on_one_rank_changes_nothing_on_any() -> None:
    ended = run([str(SCRIPT.with_name("skip_updates.py"))], ranks=2)
    assert ended.returncode == 0, ended.stderr[-3000:]
    one, other = json.loads(ended.stdout.splitlines()[-1])
    assert one == other
    assert len(one) == 2 * 8
    for setting, found in one.items():
        # A gradient of 256 on one rank and of 1 on the other; without ZeRO it is bfloat16 again.
        assert found.pop("norm over ranks") == (256 if setting == "bfloat16 0 none" else 257), (
            setting
        )
        assert found == {
            "finite": [False] * 4,
            "changed": [False] * 3,
            "learned": True,
            "as undisturbed": True,
            "updates": 2,
        }, setting


def test_when_rank_0_fails_no_order_follows_and_all_ranks_end() -> None:
    ended = run([str(SCRIPT.with_name("broken_team.py"))], ranks=2)
    assert ended.returncode != 0
    assert "['BatchTooLarge', 'TeamBroken']" in ended.stdout
    assert "the other rank was let go" not in ended.stderr


def test_a_rank_that_is_killed_is_no_fault_of_the_order() -> None:
    ended = run([str(SCRIPT.with_name("lost_rank.py"))], ranks=2)
    assert "another rank has gone" in ended.stdout
