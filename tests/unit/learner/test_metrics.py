"""Metrics over micro-batches: means by token, shares by update, and what only some steps have."""

from collections.abc import Iterator

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from services.learner.training.metrics import StepMetrics


@pytest.fixture(scope="module", autouse=True)
def lone_rank() -> Iterator[None]:
    torch.distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.fixture
def metrics() -> StepMetrics:
    return StepMetrics(torch.device("cpu"))


def test_a_mean_counts_every_token_alike(metrics: StepMetrics) -> None:
    metrics.mean(entropy=torch.tensor([1.0, 2.0, 3.0]), clipped=torch.tensor([True, False, False]))
    metrics.mean(entropy=torch.tensor([6.0]), clipped=torch.tensor([False]))
    assert metrics.reduced(num_updates=2) == {"entropy": 3.0, "clipped": 0.25}


def test_shares_add_up_within_an_update_and_are_averaged_over_updates(metrics: StepMetrics) -> None:
    for share in (0.25, 0.5, 1.25):
        metrics.share(loss=torch.tensor(share, requires_grad=True))
    assert metrics.reduced(num_updates=2) == {"loss": 1.0}


def test_counts_maxima_and_values_of_updates(metrics: StepMetrics) -> None:
    metrics.count(parity_tokens=3)
    metrics.count(parity_tokens=4)
    metrics.maximum(gap=torch.tensor([0.5, 2.0]))
    metrics.maximum(gap=torch.tensor([]))
    for norm in (1.0, 2.0, None):
        metrics.of_update(grad_norm=norm)
    assert metrics.reduced(3) == {"parity_tokens": 7.0, "gap": 2.0, "grad_norm": 1.5}


def test_no_tokens_are_a_mean_of_nothing_and_not_an_error(metrics: StepMetrics) -> None:
    metrics.mean(entropy=torch.tensor([]))
    assert metrics.reduced(num_updates=0) == {}


def test_explained_variance_is_of_the_whole_step_and_absent_where_it_means_nothing(
    metrics: StepMetrics,
) -> None:
    returns, values = torch.tensor([0.0, 1.0, 0.0, 1.0]), torch.tensor([0.0, 1.0, 0.5, 0.5])
    for part in (slice(0, 1), slice(1, 4)):
        metrics.explained(returns[part], values[part])
    assert metrics.reduced(1) == {"explained_variance": pytest.approx(0.5)}
    constant = StepMetrics(torch.device("cpu"))
    constant.explained(torch.ones(3), torch.zeros(3))
    assert constant.reduced(1) == {}
