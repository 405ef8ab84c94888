"""Fast and plain compute the same: given the same views, twenty steps of our loop and of the plain way agree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from suite.cases import StepCase, inputs_of
from suite.ours import OurStep, ReadyBatches, Spans, middle
from suite.plain import PlainModel, PlainSettings, PlainTrainer
from suite.plain_net import PlainNet, copy_weights
from suite.worker import Finished

from unissl.methods.registry import all_methods
from unissl.nets import build
from unissl.run.setup import build_training
from unissl_kernels import winograd

STEPS = 20
CASE = StepCase(net="wrn-10-1", labelled=6, unlabelled=14, size=8, classes=4, pool=200)


@dataclass
class Watch:
    """Stands in for a worker: lets our loop take some steps, and keeps the loss terms of each."""

    steps: int
    terms: list[dict[str, float]] = field(default_factory=list)
    facts: list[dict[str, float]] = field(default_factory=list)

    def __call__(self, **facts: float) -> None:
        self.facts.append(facts)
        if len(self.facts) == self.steps:
            raise Finished


def our_terms(monkeypatch: pytest.MonkeyPatch, case: StepCase) -> list[dict[str, float]]:
    """The loss terms of every step, from the loop that ``OurStep`` drives."""
    watch = Watch(STEPS)
    original = Spans.__init__

    def with_terms(self: Spans, state: Any, *rest: Any) -> None:
        losses = state.learner.method.losses

        def kept(*arguments: Any) -> Any:
            result = losses(*arguments)
            watch.terms.append({name: term.item() for name, term in result.terms.items()})
            return result

        state.learner.method.losses = kept
        original(self, state, *rest)

    monkeypatch.setattr(Spans, "__init__", with_terms)
    with pytest.raises(Finished):
        OurStep(case).run(watch)
    return watch.terms


def plain_terms(case: StepCase) -> list[dict[str, float]]:
    """The same from the plain way, on the views that our loop was given and from the same weights."""
    inputs = inputs_of(case)
    config, split = inputs.config, inputs.split
    state, batches = build_training(inputs)
    model = PlainModel(case.net, case.classes)
    copy_weights(state.learner.net, model.net)
    method: Any = state.learner.method
    copy_weights(method.aux, model.aux)
    copy_weights(method.project, model.project)
    prior = torch.tensor(split.labelled_counts, dtype=torch.get_default_dtype()) / len(split.labels)
    trainer = PlainTrainer(model, prior, PlainSettings.of(config, case.classes))
    terms = []
    for iteration in range(middle(config), middle(config) + STEPS):
        batch = batches.at(iteration)
        lb, ulb = batch["labelled"], batch["unlabelled"]
        views = (view.contiguous() for view in (lb.views["weak"], ulb.views["weak"], ulb.views["strong"]))
        terms.append(trainer.step(iteration, lb.targets, *views))
    return terms


def largest_difference(ours: list[dict[str, float]], plain: list[dict[str, float]]) -> float:
    """Over all terms and steps. The thin form leaves a constant out of L_con, which the plain way names."""
    assert len(ours) == len(plain) == STEPS
    for theirs in plain:
        theirs["con"] -= theirs.pop("left_out")
    assert all(mine.keys() == theirs.keys() for mine, theirs in zip(ours, plain, strict=True))
    return max(
        abs(mine[name] - theirs[name]) for mine, theirs in zip(ours, plain, strict=True) for name in ("sup", *mine)
    )


@pytest.fixture(params=[False, True], ids=["as it comes", "tiles"])
def tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Also with convolutions by tiles, for which maps as small as these are not worth it."""
    called: list[Any] = []
    if request.param:
        forward = winograd.forward
        monkeypatch.setattr(winograd, "forward", lambda *given: called.append(given[0].shape) or forward(*given))
        monkeypatch.setattr(winograd, "MIN_ELEMENTS", 1)
        monkeypatch.setattr(winograd, "PIXELS_PER_CHANNEL", 0)
    yield
    assert bool(called) == (request.param and winograd.kernels_available())


@pytest.mark.usefixtures("double", "tiles")
def test_twenty_steps_agree_in_double_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    assert largest_difference(our_terms(monkeypatch, CASE), plain_terms(CASE)) < 1e-9


@pytest.mark.usefixtures("tiles")
def test_twenty_steps_agree_in_single_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a gentle rate. At the paper's, a fresh network multiplies any difference by about ten in each of the first
    steps, and one pseudo-label of many that tips over is a jump: two kernels that round differently part ways."""
    gentle = replace(CASE, labelled=16, unlabelled=48, size=16, lr=0.001)
    assert largest_difference(our_terms(monkeypatch, gentle), plain_terms(gentle)) < 1e-3


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("name", ["wrn-10-1", "wrn-16-2"])
def test_the_plain_network_is_the_network(name: str) -> None:
    net, plain = build(name, 5), PlainNet(name, 5)
    copy_weights(net, plain)
    x = torch.randn(6, 3, 12, 12)
    out, (logits, feat) = net(x), plain(x)
    torch.testing.assert_close(logits, out.logits, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(feat, out.feat, rtol=1e-10, atol=1e-12)
    for own, other in zip(plain.buffers(), net.buffers(), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", list(all_methods()))
def test_every_method_can_be_measured(name: str) -> None:
    watch = Watch(2)
    with pytest.raises(Finished):
        OurStep(replace(CASE, method=name)).run(watch)
    assert len(watch.facts) == 2


def test_spans_cover_the_step_and_ready_data_are_the_same_batch() -> None:
    watch = Watch(3)
    with pytest.raises(Finished):
        OurStep(CASE, ready_data=True).run(watch)
    assert all(
        set(facts) == {"before", "forward", "backward", "optimiser", "ema", "first_step"} for facts in watch.facts
    )
    assert all(value > 0 for facts in watch.facts for value in facts.values())
    ready = ReadyBatches.like(build_training(inputs_of(CASE))[1])
    assert ready.at(0) is ready.at(7)
