"""What the trainer promises to the hooks of a method: a scan sees every image once and disturbs nothing."""

from __future__ import annotations

import copy

import torch
from method_cases import make_batches, make_split, make_state

from unissl.methods.fixmatch import FixMatchConfig
from unissl.training.trainer import TrainerContext, step_at


def scanned(weights: str, view: str = "weak") -> tuple[torch.Tensor, torch.Tensor]:
    split, config = make_split(4, pool_size=17), FixMatchConfig()
    state, batches = make_state(config, split), make_batches(config, split)
    for parameter in state.ema.shadow.values():
        parameter.mul_(1.5)  # so that averaged and live parameters differ
    context = TrainerContext(state.learner, state.ema.shadow, batches, step_at(3, 10, 2))
    before, rng = copy.deepcopy(state.learner.state_dict()), torch.get_rng_state()
    parts = list(context.scan("unlabelled", weights, view))
    assert torch.equal(rng, torch.get_rng_state())
    assert all(torch.equal(value, before[name]) for name, value in state.learner.state_dict().items())
    assert state.learner.training
    assert all(batch.target is None for batch, _ in parts)
    index = torch.cat([batch.index for batch, _ in parts])
    return index, torch.cat([prediction.logits for _, prediction in parts])


def test_scan_sees_every_image_once_in_order() -> None:
    index, logits = scanned("ema")
    assert index.tolist() == list(range(17))
    assert logits.shape == (17, 4)
    assert not logits.requires_grad


def test_scan_is_the_same_each_time_and_depends_on_the_weights() -> None:
    assert torch.equal(scanned("ema")[1], scanned("ema")[1])
    assert not torch.equal(scanned("ema")[1], scanned("live")[1])
    assert not torch.equal(scanned("live", "weak")[1], scanned("live", "strong")[1])


def test_labelled_scan_has_targets() -> None:
    split, config = make_split(4), FixMatchConfig()
    state, batches = make_state(config, split), make_batches(config, split)
    context = TrainerContext(state.learner, state.ema.shadow, batches, step_at(0, 10, 2))
    targets = torch.cat([batch.targets for batch, _ in context.scan("labelled")])
    assert targets.argmax(1).tolist() == split.labels.tolist()
