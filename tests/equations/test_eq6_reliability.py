"""Eq. (6): reliability weights from running statistics of confidence and margin."""

from __future__ import annotations

import math

import pytest
import torch

from unissl.ops.stats import TruncatedGaussian, confidence_and_margin


def slow_tracker(
    batches: list[list[float]], mean: float, var: float, momentum: float, n_sigma: float
) -> list[list[float]]:
    weights = []
    for batch in batches:
        n = len(batch)
        average = sum(batch) / n
        mean = momentum * mean + (1 - momentum) * average
        if n > 1:
            unbiased = sum((value - average) ** 2 for value in batch) / (n - 1)
            var = momentum * var + (1 - momentum) * unbiased
        weights.append([math.exp(-(n_sigma**2) * min(0.0, value - mean) ** 2 / (2 * var)) for value in batch])
    return weights


@pytest.mark.parametrize("n_sigma", [1.0, 2.0])
@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.999])
def test_weights_equal_loops_over_several_batches(n_sigma: float, momentum: float) -> None:
    values = torch.rand(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    batches = [values[0], values[1][:2], values[2], values[3][:1]]
    tracker = TruncatedGaussian(0.1, init_var=0.3, momentum=momentum, n_sigma=n_sigma).double()
    expected = slow_tracker([batch.tolist() for batch in batches], 0.1, 0.3, momentum, n_sigma)
    for batch, weights in zip(batches, expected, strict=True):
        assert tracker(batch).tolist() == pytest.approx(weights, rel=1e-6)  # 0.1 and 0.3 start in float32


def test_at_or_above_the_mean_weighs_one_and_below_less() -> None:
    tracker = TruncatedGaussian(0.5, momentum=1.0)
    weights = tracker(torch.tensor([0.5, 0.9, 0.4, 0.0]))
    assert weights[:2].tolist() == [1.0, 1.0]
    assert 1 > weights[2] > weights[3] > 0


def test_a_batch_of_one_leaves_the_variance_and_an_empty_one_everything() -> None:
    tracker = TruncatedGaussian(0.1, momentum=0.9)
    tracker(torch.tensor([0.6]))
    assert tracker.mean.item() == pytest.approx(0.15)
    assert tracker.var.item() == 1.0
    assert tracker(torch.empty(0)).shape == (0,)
    assert tracker.mean.item() == pytest.approx(0.15)


def test_identical_values_without_momentum_weigh_one() -> None:
    tracker = TruncatedGaussian(0.1, momentum=0.0)
    assert tracker(torch.full((4,), 0.25)).tolist() == [1.0] * 4
    assert tracker.var.item() == 0


def test_state_is_two_buffers_and_no_gradient_flows() -> None:
    tracker = TruncatedGaussian(0.1)
    values = torch.rand(5, requires_grad=True)
    assert not tracker(values).requires_grad
    other = TruncatedGaussian(0.7)
    other.load_state_dict(tracker.state_dict())
    assert set(tracker.state_dict()) == {"mean", "var"}
    assert torch.equal(other(values), tracker(values))


def test_confidence_and_margin_equal_sorting() -> None:
    probs = torch.randn(20, 5, generator=torch.Generator().manual_seed(0)).softmax(1)
    probs[0] = torch.tensor([0, 0, 1.0, 0, 0])  # certain
    probs[1] = 0.2  # a tie of all
    probs[2] = torch.tensor([0.4, 0.1, 0.05, 0.05, 0.4])  # a tie at the top
    q_max, q_gap = confidence_and_margin(probs)
    for row, top, gap in zip(probs.tolist(), q_max.tolist(), q_gap.tolist(), strict=True):
        ordered = sorted(row, reverse=True)
        assert top == ordered[0]
        assert gap == pytest.approx(ordered[0] - ordered[1], abs=1e-7)
    assert (q_gap[:3] == torch.tensor([1.0, 0, 0])).all()
