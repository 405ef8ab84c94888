"""The supervised references: a whole step of each against loops, and what logit adjustment changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from slow_reference import END, START, TinyNet, affine, draw_batch, entropy, features, gradients, mean, spread
from torch import Tensor

from unissl.methods.base import Method, Needs
from unissl.methods.fully_supervised import FullySupervised, FullySupervisedConfig
from unissl.methods.labels_only import LabelsOnly, LabelsOnlyConfig
from unissl.methods.logit_adjust import LogitAdjust, LogitAdjustConfig
from unissl.types import Batch, DataInfo

pytestmark = pytest.mark.usefixtures("double")
C, D = 3, 4
COUNTS = (60, 30, 1)


def make(method: type[Method], config: Any, counts: tuple[int, ...] = COUNTS) -> tuple[Method, TinyNet]:
    torch.manual_seed(0)
    num_classes = len(counts)
    return method(config, DataInfo(num_classes, D, 0, counts)), TinyNet(D, num_classes)


def draw(method: Method, num_classes: int = C) -> Batch:
    return draw_batch(method.streams(method.cfg), num_classes, {"labelled": 7}, seed=1)


def by_loops(net: TinyNet, batch: Batch, tau: float, counts: tuple[int, ...] = COUNTS) -> Tensor:
    lb = batch["labelled"]
    prior = torch.tensor([count / sum(counts) for count in counts]).log()
    rows = features(net, [*lb.views["weak"]])
    return mean(
        [
            entropy(spread(int(lb.targets[i].argmax()), len(counts), 0), affine(net.head, rows[i]) + tau * prior)
            for i in range(len(lb))
        ]
    )


def assert_equal_to_loops(method: Method, net: TinyNet, tau: float, counts: tuple[int, ...] = COUNTS) -> None:
    batch = draw(method, len(counts))
    for step in (START, END):
        losses = method.losses(net, batch, step)
        expected = by_loops(net, batch, tau, counts)
        assert list(losses.terms) == ["sup"]
        assert losses.total.item() == pytest.approx(expected.item(), rel=1e-10)
        weights = list(net.parameters())
        for grad, expected_grad in zip(gradients(losses.total, weights), gradients(expected, weights), strict=True):
            torch.testing.assert_close(grad, expected_grad, rtol=1e-8, atol=1e-12)


def test_supervised_equals_loops() -> None:
    method, net = make(FullySupervised, FullySupervisedConfig())
    assert_equal_to_loops(method, net, tau=0.0)


def test_supervised_is_labels_only_on_another_split() -> None:
    """Its loss is the floor's; that it is a ceiling comes from the labels of the pool, which it says it needs."""
    method, net = make(FullySupervised, FullySupervisedConfig())
    floor, _ = make(LabelsOnly, LabelsOnlyConfig())
    batch = draw(method)
    assert torch.equal(method.losses(net, batch, START).total, floor.losses(net, batch, START).total)
    assert method.needs == {Needs.POOL_LABELS}
    assert floor.needs == frozenset()


@pytest.mark.parametrize("tau", [0.0, 1.0, 2.5])
def test_logit_adjustment_equals_loops(tau: float) -> None:
    method, net = make(LogitAdjust, LogitAdjustConfig(tau=tau))
    assert_equal_to_loops(method, net, tau)


def test_strength_of_the_adjustment_by_number_of_classes() -> None:
    assert LogitAdjustConfig().for_data(10).tau == 2.5
    assert LogitAdjustConfig().for_data(11).tau == 1.5
    assert LogitAdjustConfig(tau=0.0).for_data(100).tau == 0.0
    for counts in (COUNTS, tuple(range(1, 13))):
        method, net = make(LogitAdjust, LogitAdjustConfig(), counts)
        assert_equal_to_loops(method, net, 2.5 if len(counts) == 3 else 1.5, counts)


def test_even_classes_make_the_adjustment_vanish() -> None:
    method, net = make(LogitAdjust, LogitAdjustConfig(), (5, 5, 5))
    plain, _ = make(FullySupervised, FullySupervisedConfig())
    batch = draw(method)
    total, plain_total = (m.losses(net, batch, START).total.item() for m in (method, plain))
    assert total == pytest.approx(plain_total, rel=1e-12)


def test_a_rare_class_is_pushed_harder_and_predictions_are_raw() -> None:
    method, net = make(LogitAdjust, LogitAdjustConfig())
    plain, _ = make(FullySupervised, FullySupervisedConfig())
    batch = draw(method)
    (adjusted,), (usual,) = (gradients(m.losses(net, batch, START).total, [net.head.bias]) for m in (method, plain))
    assert adjusted[2] < usual[2]  # downhill is upwards for the bias of the class with one image
    images = batch["labelled"].views["weak"]
    assert torch.equal(method.predict(net.eval(), images).logits, net(images).logits)
    assert method.inference_module(net) is net
