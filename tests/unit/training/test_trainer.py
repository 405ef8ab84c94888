"""The training loop: when it evaluates, what stops it, what it warns of, and that a resumed run is an unbroken one."""

from __future__ import annotations

import logging
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from method_cases import OPTIM, make_batches, make_split
from torch import Tensor

from unissl.methods.base import Context, Method, MethodConfig, Network
from unissl.methods.fixmatch import FixMatchConfig
from unissl.nets import build
from unissl.run.setup import restore_latest
from unissl.run_folder import WALL_CLOCK_FIELDS, RunFolder
from unissl.training import checkpoint
from unissl.training.checkpoint import TrainState
from unissl.training.ema import Ema
from unissl.training.learner import Learner
from unissl.training.optim import build_optimizer
from unissl.training.prefetch import Prefetch
from unissl.training.signals import Interrupted
from unissl.training.trainer import NonFiniteLoss, TrainConfig, Trainer, period_ends, step_at
from unissl.types import Batch, DataInfo, Losses, Step
from unissl.utils import progress

SPLIT = make_split(6)
Lines = list[dict[str, Any]]


class Scripted(Method):
    """A supervised step whose loss, selection and side effects the test decides, step by step."""

    def __init__(self) -> None:
        super().__init__(MethodConfig(name="scripted"), DataInfo(6, 128, 24, SPLIT.labelled_counts))
        self.factor: Callable[[int], float] = lambda i: 1.0
        self.selected: Callable[[int], float] = lambda i: 0.5
        self.then: Callable[[int], object] = lambda i: None
        self.calls: list[str] = []

    def losses(self, net: Network, batch: Batch, step: Step) -> Losses:
        lb = batch["labelled"]
        loss = torch.nn.functional.cross_entropy(net(lb.views["weak"]).logits, lb.targets)
        self.calls.append(f"losses {step.iteration}")
        return Losses(
            {"sup": loss * self.factor(step.iteration)}, {}, {"selected": torch.tensor(self.selected(step.iteration))}
        )

    def on_period_start(self, ctx: Context) -> None:
        self.calls.append(f"period {ctx.step.period}")

    def after_step(self, ctx: Context) -> None:
        self.then(ctx.step.iteration)


def good_predictions(learner: Learner, shadow: dict[str, Tensor]) -> tuple[dict[str, Any], npt.NDArray[np.int64]]:
    return {"accuracy": 0.5}, np.arange(6)


def collapsed(learner: Learner, shadow: dict[str, Tensor]) -> tuple[dict[str, Any], npt.NDArray[np.int64]]:
    return {"accuracy": 0.5}, np.array([2, 2, 2, 4])


def make(folder: Path, **changes: Any) -> tuple[Trainer, Scripted]:
    torch.manual_seed(0)
    method = Scripted()
    learner = Learner(build("small", 6, 1), method)
    state = TrainState(learner, Ema(learner, OPTIM.ema_decay), build_optimizer(learner, OPTIM))
    trainer = Trainer(
        state=state,
        batches=make_batches(FixMatchConfig(), SPLIT),
        config=TrainConfig(**{"steps": 8, "evaluations": 4, "method_periods": 4, "log_every": 1, **changes}),
        optim=OPTIM,
        folder=RunFolder(folder),
        config_hash="hash",
        evaluate=good_predictions,
    )
    return trainer, method


def lines(folder: Path, kind: str | None = None) -> Lines:
    found = RunFolder(folder).read_metrics()
    kept = [line for line in found if kind in (None, line["kind"])]
    return [{k: v for k, v in line.items() if k not in WALL_CLOCK_FIELDS} for line in kept]


@settings(deadline=None)
@given(total=st.integers(1, 3000), periods=st.integers(1, 300))
def test_periods_cover_the_steps_whatever_the_numbers(total: int, periods: int) -> None:
    """A step is the last of its period exactly if it is in ``period_ends``; lengths differ by one at most."""
    numbers = [step_at(i, total, periods).period for i in range(total)]
    changes = {i + 1 for i in range(total) if i + 1 == total or numbers[i + 1] != numbers[i]}
    assert period_ends(total, periods) == changes
    assert numbers[0] == 0 and max(numbers) < periods
    lengths = [numbers.count(e) for e in set(numbers)]
    assert max(lengths) - min(lengths) <= 1
    if total >= periods:
        assert set(numbers) == set(range(periods))


def test_step_says_which_share_of_the_budget_is_used() -> None:
    assert step_at(30 * 1024, 2**18, 256) == Step(30720, 2**18, 30, 256)
    assert step_at(30 * 1024, 2**18, 256).fraction == 30 / 256
    assert period_ends(7, 3) == {3, 5, 7}
    assert period_ends(2, 5) == {1, 2}


def test_a_run_in_the_order_it_happens(tmp_path: Path) -> None:
    trainer, method = make(tmp_path, steps=5, evaluations=2, method_periods=2, log_every=2)
    trainer.run()
    assert method.calls == [
        *("period 0", "losses 0", "losses 1", "losses 2"),
        *("period 1", "losses 3", "losses 4"),
    ]
    assert [(line["kind"], line["step"]) for line in lines(tmp_path)] == [
        ("train", 2),
        ("eval", 3),
        ("train", 4),
        ("train", 5),
        ("eval", 5),
    ]
    names = [path.name for path in checkpoint.list_checkpoints(tmp_path / "checkpoints")]
    assert names == ["step-00000003.safetensors", "step-00000005.safetensors"]


@pytest.mark.parametrize("evaluations", [1, 3, 6])
def test_periods_of_a_method_do_not_depend_on_the_number_of_evaluations(evaluations: int, tmp_path: Path) -> None:
    trainer, method = make(tmp_path, steps=6, evaluations=evaluations, method_periods=2)
    trainer.run()
    assert method.calls == [
        *("period 0", "losses 0", "losses 1", "losses 2"),
        *("period 1", "losses 3", "losses 4", "losses 5"),
    ]
    assert len(lines(tmp_path, "eval")) == evaluations


def test_checkpoints_by_number_of_steps(tmp_path: Path) -> None:
    trainer, _ = make(tmp_path, checkpoint_every=3)
    trainer.run()
    names = [path.name for path in checkpoint.list_checkpoints(tmp_path / "checkpoints")]
    assert names == ["step-00000006.safetensors", "step-00000008.safetensors"]  # the last step always has one


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize(("log_every", "noticed"), [(1, "'sup' .* at step 5"), (100, "'total' .* at step 6")])
def test_a_loss_that_is_not_finite_stops_and_keeps_the_last_good_checkpoint(
    bad: float, log_every: int, noticed: str, tmp_path: Path
) -> None:
    """Also when no line is logged in between: then before the next checkpoint is written."""
    trainer, method = make(tmp_path, log_every=log_every)
    method.factor = lambda i: bad if i == 4 else 1.0
    with pytest.raises(NonFiniteLoss, match=f"The loss {noticed}; training stopped .* lower optim.lr") as caught:
        trainer.run()
    assert all(np.isfinite(line["loss"]["sup"]) for line in lines(tmp_path, "train"))
    assert str(tmp_path / "checkpoints") in str(caught.value)
    assert [path.name for path in checkpoint.list_checkpoints(tmp_path / "checkpoints")] == [
        "step-00000002.safetensors",
        "step-00000004.safetensors",
    ]
    fresh, _ = make(tmp_path / "elsewhere")
    checkpoint.restore(tmp_path / "checkpoints" / "step-00000004.safetensors", fresh.state, "hash")
    assert all(torch.isfinite(p).all() for p in fresh.state.learner.parameters())


def test_parameters_that_are_not_finite_are_never_saved(tmp_path: Path) -> None:
    """The last step before a checkpoint may blow up with its loss still finite."""
    trainer, method = make(tmp_path)

    def break_a_weight(i: int) -> None:
        if i == 3:
            with torch.no_grad():
                trainer.state.learner.get_parameter("net.head.bias")[0] = float("nan")

    method.then = break_a_weight
    with pytest.raises(NonFiniteLoss):
        trainer.run()
    names = [path.name for path in checkpoint.list_checkpoints(tmp_path / "checkpoints")]
    assert names == ["step-00000002.safetensors"]


def test_a_healthy_run_is_not_warned(tmp_path: Path) -> None:
    make(tmp_path)[0].run()
    assert lines(tmp_path, "warning") == []


def test_collapse_is_logged_and_recorded_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer, _ = make(tmp_path)
    trainer.evaluate, trainer.class_names = collapsed, ["cat", "dog", "fox", "owl", "bee", "ant"]
    trainer.run()
    (warning,) = lines(tmp_path, "warning")
    assert (warning["about"], warning["step"]) == ("collapse", 4)  # step 2 is too early to judge
    assert warning["message"].startswith("Only 2 of 6 classes are predicted, 75% of the images as class 'fox'")
    assert [record.levelname for record in caplog.records if "Only 2 of 6 classes" in record.message] == ["WARNING"]


def test_progress_shows_loss_pseudo_labels_and_accuracy_but_no_terms(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY", 0.0)
    with caplog.at_level(logging.INFO, "unissl"):
        make(tmp_path)[0].run()
    shown = [record.message for record in caplog.records if " of 8 steps" in record.message]
    facts = re.compile(r"training: 8 of 8 steps, .* left, loss \d+\.\d{3}, pseudo-labels used 50%, accuracy 50\.0%")
    assert facts.fullmatch(shown[-1]) and not any("sup " in line or "selected" in line for line in shown)


def test_a_pool_that_teaches_nothing_is_noted(tmp_path: Path) -> None:
    """The mean between two evaluations counts, not a single step: 0.002 and 0 are enough, 0 and 0 are not."""
    trainer, method = make(tmp_path)
    method.selected = lambda i: 0.002 if i % 2 == 0 and i < 6 else 0.0
    trainer.run()
    (warning,) = lines(tmp_path, "warning")
    assert (warning["about"], warning["step"]) == ("selection", 8)
    assert warning["message"].startswith("Only 0.00% of the pseudo-labels are in use")


@pytest.mark.parametrize("stop_after", [3, 4, 5, 7])
def test_a_resumed_run_records_what_an_unbroken_one_does(stop_after: int, tmp_path: Path) -> None:
    """A signal between two evaluations: losses, evaluations and warnings come out the same, each once."""

    def prepare(folder: Path) -> tuple[Trainer, Scripted]:
        trainer, method = make(folder, steps=9, evaluations=3, method_periods=3)
        trainer.evaluate = collapsed
        method.selected = lambda i: 0.01 if i == 6 else 0.0
        return trainer, method

    whole, _ = prepare(tmp_path / "whole")
    whole.folder.create()
    whole.run()

    broken, method = prepare(tmp_path / "broken")
    broken.folder.create()
    method.then = lambda i: os.kill(os.getpid(), signal.SIGTERM) if i + 1 == stop_after else None
    with pytest.raises(Interrupted) as caught:
        broken.run()
    assert caught.value.exit_code == 75
    broken.folder.append_metrics({"kind": "warning", "step": 99, "about": "lost", "message": "after the checkpoint"})

    again, method = prepare(tmp_path / "broken")
    restore_latest(again.folder, again.state, "hash")
    assert again.state.step == stop_after
    again.run()
    assert method.calls[0] in (f"losses {stop_after}", f"period {stop_after // 3}")
    assert lines(tmp_path / "broken") == lines(tmp_path / "whole")
    assert {line["about"] for line in lines(tmp_path / "whole", "warning")} == {"collapse", "selection"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_a_signal_in_the_last_step_is_not_lost(tmp_path: Path, number: int) -> None:
    """The state is saved first; a restart has nothing left to train and goes on with what comes after."""
    trainer, method = make(tmp_path, checkpoint_every=3)
    method.then = lambda i: os.kill(os.getpid(), number) if i == 7 else None
    with pytest.raises(Interrupted, match="after step 8; the state is saved; "):
        trainer.run()
    again, method = make(tmp_path, checkpoint_every=3)
    restore_latest(again.folder, again.state, "hash")
    again.run()
    assert again.state.step == 8 and method.calls == []


def test_a_signal_after_the_last_look_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, _ = make(tmp_path)
    really_close = Prefetch.__exit__

    def close(self: Prefetch, *error: Any) -> None:
        really_close(self, *error)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Prefetch, "__exit__", close)
    with pytest.raises(Interrupted, match="after step 8"):
        trainer.run()


def test_a_context_scans_without_touching_training(tmp_path: Path) -> None:
    trainer, method = make(tmp_path, steps=2, evaluations=1, method_periods=1)
    seen: list[int] = []
    spread: list[float] = []

    def look(ctx: Context) -> None:
        for batch, prediction in ctx.scan("unlabelled", weights="live"):
            seen.extend(batch.index.tolist())
            spread.append(prediction.logits.std().item())

    before = {name: value.clone() for name, value in trainer.state.learner.state_dict().items()}
    method.on_period_start = look  # type: ignore[method-assign]
    method.losses = lambda net, batch, step: Losses({"sup": net.head.weight.sum() * 0})  # type: ignore[method-assign]
    trainer.optim = trainer.optim.model_copy(update={"lr": 1e-30})
    trainer.run()
    assert seen == list(range(24)) and min(spread) > 0
    after = trainer.state.learner.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert trainer.state.learner.training
