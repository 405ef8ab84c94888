"""CDMAD: whole steps with moving BatchNorm statistics against loops, as the method means it and as its port has it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from slow_reference import (
    END,
    PIXELS,
    START,
    Row,
    TinyNet,
    affine,
    batch_norm,
    draw_batch,
    entropy,
    gradients,
    mean,
    softmax,
    spread,
)
from torch import Tensor, nn

from unissl.methods.cdmad import CDMAD, CDMADConfig
from unissl.types import Batch, DataInfo, Step

pytestmark = pytest.mark.usefixtures("double")
C, D, SIZES = 3, 4, {"labelled": 4, "unlabelled": 6}
WHITE = torch.ones(PIXELS[0] * PIXELS[1] * PIXELS[2], dtype=torch.float64)
STEPS = 6


def make(**settings: Any) -> tuple[CDMAD, TinyNet]:
    torch.manual_seed(0)
    return CDMAD(CDMADConfig(**settings), DataInfo(C, D, 9, (1, 6, 3))), TinyNet(D, C)


@dataclass
class Reference:
    """CDMAD with one row at a time; ``running`` are BatchNorm's mean and variance."""

    threshold: float
    soft: bool
    port: bool
    debias_from: float
    running: list[Row] = field(default_factory=lambda: [torch.zeros(D), torch.ones(D)])

    def features(self, net: TinyNet, images: list[Tensor]) -> list[Row]:
        """Features of a joint batch in train mode, which moves the running statistics."""
        rows = [affine(net.first, image.flatten()) for image in images]
        centre = sum(rows, torch.zeros(D)) / len(rows)
        unbiased = sum(((row - centre) ** 2 for row in rows), torch.zeros(D)) / (len(rows) - 1)
        self.running = [
            0.9 * old + 0.1 * new.detach() for old, new in zip(self.running, (centre, unbiased), strict=True)
        ]
        return batch_norm(net.norm, rows)

    def white(self, net: TinyNet, count: int) -> Row:
        """b, from a batch of white images in train mode (the port) or from one by the running statistics."""
        if self.port:
            return affine(net.head, self.features(net, [WHITE] * count)[0]).detach()
        centre, var = self.running
        normal = (affine(net.first, WHITE) - centre) / (var + net.norm.eps).sqrt()
        return affine(net.head, normal * net.norm.weight + net.norm.bias).detach()

    def step(self, net: TinyNet, batch: Batch, fraction: float) -> tuple[dict[str, Tensor], float]:
        lb, ulb = batch["labelled"], batch["unlabelled"]
        n, m = len(lb), len(ulb)
        b = torch.zeros(C) if self.port else self.white(net, m)
        f = self.features(net, [*lb.views["weak"], *ulb.views["weak"], *ulb.views["strong"]])
        if self.port:  # white images pass after the real ones
            b = self.white(net, m)
        if fraction < self.debias_from:
            b = torch.zeros(C)
        logits = [affine(net.head, row) for row in f]
        sup = mean([entropy(lb.targets[i].tolist(), logits[i]) for i in range(n)])
        unsup, kept = [], 0
        for j in range(n, n + m):
            q = softmax(logits[j].detach() - b)
            keep = max(q) >= self.threshold
            target = q if self.soft else spread(q.index(max(q)), C, 0)
            unsup.append(float(keep) * entropy(target, logits[j + m]))
            kept += keep
        return {"sup": sup, "unsup": mean(unsup)}, kept / m


@pytest.mark.parametrize("threshold", [0.0, 0.6, 0.8, 1.0])
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("port", [False, True])
def test_steps_equal_loops_in_value_gradient_and_state(threshold: float, soft: bool, port: bool) -> None:
    method, net = make(threshold=threshold, soft=soft, port=port, debias_from=0.3, unsup_weight=0.7)
    reference = Reference(threshold, soft, port, debias_from=0.3)
    nn.init.normal_(net.norm.bias)
    shares = []
    for iteration in range(STEPS):
        batch = draw_batch(method.streams(method.cfg), C, SIZES, seed=iteration)
        step = Step(iteration, STEPS, iteration, STEPS)
        losses = method.losses(net, batch, step)
        expected, kept = reference.step(net, batch, step.fraction)
        assert {name: term.item() for name, term in losses.terms.items()} == pytest.approx(
            {name: term.item() for name, term in expected.items()}, rel=1e-10
        )
        assert losses.logs["selected"].item() == pytest.approx(kept)
        for grad, expected_grad in zip((net.norm.running_mean, net.norm.running_var), reference.running, strict=True):
            torch.testing.assert_close(grad, expected_grad.detach(), rtol=1e-10, atol=1e-12)
        total = expected["sup"] + 0.7 * expected["unsup"]
        parameters = list(net.parameters())
        for grad, expected_grad in zip(gradients(losses.total, parameters), gradients(total, parameters), strict=True):
            torch.testing.assert_close(grad, expected_grad, rtol=1e-8, atol=1e-12)
        shares.append(kept)
    assert any(0 < share < 1 for share in shares) or threshold in (0.0, 1.0)  # the cases in between do cut


def test_the_port_lets_white_images_into_the_statistics() -> None:
    """Half of its updates are those of a constant, so the running variance is far too small for real images."""
    spreads, biases = [], []
    for port in (False, True):
        method, net = make(port=port)
        for seed in range(60):
            method.losses(net, draw_batch(method.streams(method.cfg), C, SIZES, seed=seed), END)
        assert net.norm.num_batches_tracked == (120 if port else 60)
        assert net.norm.running_var is not None
        spreads.append(net.norm.running_var.sum().item())
        biases.append(method.bias(net, torch.zeros(5, *PIXELS))[0])
    assert spreads[1] < 0.7 * spreads[0]
    assert (biases[0] - biases[1]).abs().max() > 0.05
    # A constant is normalised to BatchNorm's offset by its own statistics, whatever the network has learnt.
    torch.testing.assert_close(biases[1], affine(net.head, net.norm.bias))


def test_the_white_image_leaves_modes_and_statistics_alone() -> None:
    method, net = make()
    net.norm.training = False  # a frozen part
    before = {name: value.clone() for name, value in net.state_dict().items()}
    bias = method.bias(net, torch.zeros(5, *PIXELS))
    assert bias.shape == (1, C)
    assert not bias.requires_grad
    assert net.training and net.head.training and not net.norm.training
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_debiasing_starts_after_51_of_256_epochs() -> None:
    """The last step without and the first with it; BatchNorm is fixed, so that nothing else differs between them."""
    method, net = make(threshold=0.0)
    net.eval()
    with torch.no_grad():
        net.head.bias[1] = 50.0  # a bias that every pseudo-label follows
    batch = draw_batch(method.streams(method.cfg), C, SIZES, seed=1)
    last, first = (method.losses(net, batch, Step(i, 1024, i // 4, 256)) for i in (203, 204))
    assert last.terms["unsup"].item() == pytest.approx(0, abs=1e-12)
    assert first.terms["unsup"].item() > 1
    assert last.terms["sup"].item() == first.terms["sup"].item()


def test_an_empty_mask_leaves_the_supervised_loss_alone() -> None:
    method, net = make(threshold=1.0)
    losses = method.losses(net, draw_batch(method.streams(method.cfg), C, SIZES, seed=1), END)
    assert losses.terms["unsup"].item() == 0
    assert losses.total.item() == losses.terms["sup"].item()
    assert all((g == 0).all() for g in gradients(losses.terms["unsup"], list(net.parameters())))


def test_one_favoured_class_is_taken_out() -> None:
    """An offset of the head is the same for the white image, so pseudo-labels do not see it."""
    for offset in (0.0, 50.0):
        method, net = make(threshold=0.9)
        with torch.no_grad():
            net.head.bias[1] += offset
        losses = method.losses(net, draw_batch(method.streams(method.cfg), C, SIZES, seed=1), END)
        if offset == 0:
            selected = losses.logs["selected"].item()
    assert 0 < selected < 1
    assert losses.logs["selected"].item() == pytest.approx(selected)


def test_a_confidence_at_the_threshold_counts_and_a_tie_goes_to_the_first_class() -> None:
    method = CDMAD(CDMADConfig(threshold=0.25), DataInfo(4, D, 9, (1, 1, 1, 1)))
    net = TinyNet(D, 4)
    nn.init.zeros_(net.head.weight)
    nn.init.zeros_(net.head.bias)
    losses = method.losses(net, draw_batch(method.streams(method.cfg), 4, SIZES, seed=1), END)
    assert losses.logs["selected"].item() == 1
    (slope,) = gradients(losses.terms["unsup"], [net.head.bias])
    torch.testing.assert_close(slope, torch.tensor([0.25 - 1, 0.25, 0.25, 0.25]))


@pytest.mark.parametrize("soft", [False, True])
def test_pseudo_labels_and_white_images_get_no_gradient(soft: bool) -> None:
    method, net = make(threshold=0.0, soft=soft)
    net.eval()  # no BatchNorm statistics that would tie the views together
    batch = draw_batch(method.streams(method.cfg), C, SIZES, seed=1, requires_grad=True)
    losses = method.losses(net, batch, END)
    weak, strong = batch["unlabelled"].views["weak"], batch["unlabelled"].views["strong"]
    of_weak, of_strong = gradients(losses.total, [weak, strong])
    assert not of_weak.any()
    assert of_strong.any()


@pytest.mark.parametrize("port", [False, True])
def test_prediction_subtracts_the_white_image(port: bool) -> None:
    method, net = make(port=port)
    for seed in range(3):
        method.losses(net, draw_batch(method.streams(method.cfg), C, SIZES, seed=seed), START)
    reference = Reference(0.95, soft=False, port=False, debias_from=0.0)
    assert net.norm.running_mean is not None and net.norm.running_var is not None
    reference.running = [net.norm.running_mean, net.norm.running_var]
    method.eval(), net.eval()
    images = draw_batch(method.streams(method.cfg), C, SIZES, seed=8)["unlabelled"].views["weak"]
    prediction = method.predict(net, images)
    for image, logits in zip(images, prediction.logits, strict=True):
        normal = (affine(net.first, image.flatten()) - reference.running[0]) / (
            reference.running[1] + net.norm.eps
        ).sqrt()
        expected = affine(net.head, normal * net.norm.weight + net.norm.bias) - reference.white(net, 1)
        assert logits.tolist() == pytest.approx(expected.tolist(), rel=1e-9, abs=1e-12)
    white = torch.ones(1, *PIXELS)
    assert not method.predict(net, white).logits.any()
    shipped = method.inference_module(net)
    assert torch.equal(shipped(images).logits, prediction.logits)
    assert {id(p) for p in shipped.parameters()} == {id(p) for p in net.parameters()}
