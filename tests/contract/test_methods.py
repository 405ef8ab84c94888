"""The contract of a method. A new file in ``unissl/methods`` is enrolled here automatically."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from method_cases import OPTIM, make_batches, make_split, make_state

from unissl.augment import AugmentConfig
from unissl.augment.feature_views import FeatureViews
from unissl.batches import BatchConfig, Batches, subsets
from unissl.methods.base import Method, MethodConfig
from unissl.methods.registry import all_methods, get_method
from unissl.methods.sage import FORMS
from unissl.training import checkpoint
from unissl.training.checkpoint import TrainState
from unissl.training.optim import learning_rate, set_learning_rate
from unissl.training.trainer import TrainerContext, step_at

CASES = [*all_methods(), *(f"sage:{form}" for form in FORMS if form != "default")]
TOTAL, PERIODS = 12, 3


def config_of(case: str, num_classes: int = 4) -> MethodConfig:
    name, _, form = case.partition(":")
    return get_method(name).Config(**({"form": form} if form else {})).for_data(num_classes)


def advance(state: TrainState, batches: Batches, until: int) -> list[float]:
    """Plain training steps, as the trainer makes them; returns the total loss of each."""
    totals = []
    for iteration in range(state.step, until):
        step = step_at(iteration, TOTAL, PERIODS)
        context = TrainerContext(state.learner, state.ema.shadow, batches, step)
        if iteration % (TOTAL // PERIODS) == 0:
            state.learner.method.on_period_start(context)
        set_learning_rate(state.optimizer, learning_rate(OPTIM, iteration, TOTAL))
        total = state.learner.losses(batches.at(iteration, state.learner.method.promoted()), step).total
        state.optimizer.zero_grad()
        total.backward()
        state.optimizer.step()
        state.ema.update(state.learner)
        state.learner.method.after_step(context)
        state.step += 1
        totals.append(total.item())
    return totals


def tensors(state: TrainState) -> dict[str, torch.Tensor]:
    return {**state.learner.state_dict(), **{f"ema.{k}": v for k, v in state.ema.shadow.items()}}


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("num_classes", "channels"), [(2, 1), (4, 3), (100, 3)])
def test_losses_are_finite_and_reach_every_parameter(case: str, num_classes: int, channels: int) -> None:
    split = make_split(num_classes)
    config = config_of(case, num_classes)
    state, batches = make_state(config, split, channels), make_batches(config, split, channels)
    reached: set[str] = set()
    for iteration in range(TOTAL):
        losses = state.learner.losses(batches.at(iteration), step_at(iteration, TOTAL, PERIODS))
        assert all(torch.isfinite(term) and term.ndim == 0 for term in losses.terms.values())
        assert all(not value.requires_grad and value.ndim == 0 for value in losses.logs.values())
        assert set(losses.weights) <= set(losses.terms)
        state.learner.zero_grad()
        losses.total.backward()
        reached |= {name for name, p in state.learner.named_parameters() if p.grad is not None and p.grad.any()}
    everything = {name for name, _ in state.learner.named_parameters()}
    assert everything - reached == state.learner.untrained_parameters()


@pytest.mark.parametrize("case", CASES)
def test_batch_is_not_changed(case: str) -> None:
    split, config = make_split(4), config_of(case)
    state, batches = make_state(config, split), make_batches(config, split)
    batch = batches.at(0)
    before = copy.deepcopy(batch)
    state.learner.losses(batch, step_at(0, TOTAL, PERIODS)).total.backward()
    for name, stream in batch.items():
        assert torch.equal(stream.index, before[name].index)
        assert all(torch.equal(stream.views[view], before[name].views[view]) for view in stream.views)
        if stream.target is not None:
            assert torch.equal(stream.target, before[name].targets)


@pytest.mark.parametrize("case", [case for case in CASES if get_method(case.partition(":")[0]).supports_features()])
def test_views_of_features_differ(case: str) -> None:
    """Two views that are the same numbers have nothing to agree on: SSB's and CaliMatch's L_socr would be 0."""
    config = config_of(case)
    features = np.random.RandomState(0).normal(size=(40, 3, 16)).astype(np.float32)
    views = FeatureViews(features, AugmentConfig(), torch.device("cpu"))
    streams = get_method(config.name).streams(config)
    batch = Batches(views, subsets(make_split(4)), streams, BatchConfig(), 0, torch.device("cpu")).at(0)
    for stream in batch.values():
        for one, other in itertools.combinations(stream.views.values(), 2):
            assert not torch.equal(one, other)


@pytest.mark.parametrize("case", CASES)
def test_same_seed_same_numbers_other_seed_others(case: str) -> None:
    split, config = make_split(4), config_of(case)
    runs = []
    for seed in (0, 0, 1):
        state = make_state(config, split, seed=seed)
        runs.append((advance(state, make_batches(config, split), 4), tensors(state)))
    assert runs[0][0] == runs[1][0]
    assert_same(runs[0][1], runs[1][1])
    assert runs[0][0] != runs[2][0]


@pytest.mark.parametrize("case", CASES)
def test_losses_draw_no_random_numbers(case: str) -> None:
    split, config = make_split(4), config_of(case)
    state, batches = make_state(config, split), make_batches(config, split)
    before = torch.get_rng_state()
    advance(state, batches, 2)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("case", CASES)
def test_resumes_bit_for_bit(case: str, tmp_path: Path) -> None:
    split, config = make_split(4), config_of(case)
    batches = make_batches(config, split)
    whole = make_state(config, split)
    losses = advance(whole, batches, TOTAL)

    first = make_state(config, split)
    early = advance(first, batches, 5)
    path = checkpoint.save(tmp_path, first, "hash", 0)
    second = make_state(config, split, seed=7)  # another start, so that nothing can be right by chance
    checkpoint.restore(path, second, "hash")
    late = advance(second, batches, TOTAL)
    assert early + late == losses
    assert_same(tensors(whole), tensors(second))


@pytest.mark.parametrize("case", CASES)
def test_state_dict_is_complete_and_strict(case: str) -> None:
    split, config = make_split(4), config_of(case)
    one, other = make_state(config, split), make_state(config, split, seed=3)
    advance(one, make_batches(config, split), 2)
    other.learner.load_state_dict(one.learner.state_dict(), strict=True)
    assert_same(one.learner.state_dict(), other.learner.state_dict())


@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("double")
def test_works_in_double_precision(case: str) -> None:
    split, config = make_split(4), config_of(case)
    state = make_state(config, split)
    advance(state, make_batches(config, split), 2)
    assert {value.dtype for value in state.learner.state_dict().values() if value.is_floating_point()} == {
        torch.float64
    }


@pytest.mark.parametrize("case", CASES)
def test_pool_smaller_than_a_batch(case: str) -> None:
    split, config = make_split(3, pool_size=4), config_of(case, 3)
    totals = advance(make_state(config, split), make_batches(config, split), 2)
    assert all(torch.isfinite(torch.tensor(totals)))


@pytest.mark.parametrize("case", CASES)
def test_prediction_is_deterministic_and_leaves_training_alone(case: str) -> None:
    split, config = make_split(4), config_of(case)
    state, batches = make_state(config, split), make_batches(config, split)
    advance(state, batches, 2)
    images = next(iter(batches.scan_shares("unlabelled"))).views["none"]
    before = copy.deepcopy(state.learner.state_dict())
    shadowed = state.learner.predict(images, state.ema.shadow)
    assert shadowed.logits.shape == (len(images), 4)
    assert torch.equal(shadowed.logits, state.learner.predict(images, state.ema.shadow).logits)
    assert not torch.equal(shadowed.logits, state.learner.predict(images).logits)
    assert state.learner.training
    assert_same(before, state.learner.state_dict())


@pytest.mark.parametrize("case", CASES)
def test_inference_module_has_only_what_prediction_needs(case: str) -> None:
    split, config = make_split(4), config_of(case)
    learner = make_state(config, split).learner
    images = torch.rand(3, 1, 8, 8)
    module = learner.method.inference_module(learner.net).eval()
    assert torch.equal(module(images).logits, learner.predict(images).logits)


@pytest.mark.parametrize("method", all_methods().values(), ids=list(all_methods()))
def test_documents_itself(method: type[Method]) -> None:
    import sys

    text = sys.modules[method.__module__].__doc__ or ""
    assert "| symbol |" in text, "the module docstring has a table of symbols"
    assert method.link in text or method.link == "-", "the module docstring links the paper or its code"
    for name, field in method.Config.model_fields.items():
        assert field.description or name == "name", f"{name} has no docstring"
