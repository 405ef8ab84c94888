"""Eq. (7) and (8): the cross entropy H, and the smoothed targets of the released form."""

from __future__ import annotations

import math

import pytest
import torch

from unissl.ops.losses import cross_entropy, smooth


def slow_cross_entropy(target: list[float], logits: list[float]) -> float:
    log_total = math.log(sum(math.exp(value) for value in logits))
    return -sum(t * (value - log_total) for t, value in zip(target, logits, strict=True))


@pytest.mark.parametrize(("n", "classes"), [(1, 2), (5, 3), (8, 10)])
def test_cross_entropy_equals_loops(n: int, classes: int) -> None:
    generator = torch.Generator().manual_seed(n)
    logits = 3 * torch.randn(n, classes, dtype=torch.float64, generator=generator)
    soft = torch.randn(n, classes, dtype=torch.float64, generator=generator).softmax(1)
    index = torch.randint(classes, (n,), generator=generator)
    expected = [slow_cross_entropy(soft[i].tolist(), logits[i].tolist()) for i in range(n)]
    assert cross_entropy(logits, soft).tolist() == pytest.approx(expected, rel=1e-12)
    hard = torch.eye(classes, dtype=torch.float64)[index]
    torch.testing.assert_close(cross_entropy(logits, index), cross_entropy(logits, hard))
    assert cross_entropy(logits, index).shape == (n,)


def test_confident_logits_stay_finite() -> None:
    logits = torch.tensor([[1e4, 0.0, 0.0]])
    assert cross_entropy(logits, torch.tensor([0])).item() == 0
    assert cross_entropy(logits, torch.tensor([1])).item() == 1e4


def test_smoothing_a_one_hot_target() -> None:
    smoothed = smooth(torch.eye(5, dtype=torch.float64), 0.1)
    for i in range(5):
        for j in range(5):
            assert smoothed[i, j].item() == pytest.approx(0.9 if i == j else 0.1 / 4)


def test_smoothing_is_the_mixture_over_hard_labels_and_keeps_the_sum() -> None:
    soft = torch.rand(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    soft = soft / soft.sum(1, keepdim=True)
    mixture = soft @ smooth(torch.eye(4, dtype=torch.float64), 0.3)
    torch.testing.assert_close(smooth(soft, 0.3), mixture)
    torch.testing.assert_close(smooth(soft, 0.3).sum(1), torch.ones(6, dtype=torch.float64))
    assert torch.equal(smooth(soft, 0.0), soft)
