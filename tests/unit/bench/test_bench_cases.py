"""The parts of the benchmarks that compute: synthetic data, the breakdown of a step, the pool on disk, the picture."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from suite.cases import PAPER, TINY, config_of, synthetic
from suite.charts import draw
from suite.growth import write_pool
from suite.measure import Report, Result, Row
from suite.plain_gri import plain_contrast
from suite.step import images_of
from suite.usage import Usage
from suite.waiting import breakdown
from torch.nn import functional

from unissl.errors import UserError
from unissl.methods.base import Needs
from unissl.methods.registry import all_methods
from unissl.ops.graph import contrast_loss
from unissl.ops.simplex import simplex_anchors

NOTHING = Usage(0, 0, 0, 0, 0.0, 0.0)


class Space(NamedTuple):
    free: int


def report(seconds: float, **facts: float) -> Report:
    return Report(seconds, NOTHING, NOTHING, facts)


def test_the_paper_s_step_is_the_paper_s() -> None:
    config = config_of(PAPER, synthetic(TINY)[0])
    assert (config.net.name, config.batch.labelled, config.batch.unlabelled) == ("wrn-28-2", 64, 448)
    assert images_of(PAPER) == 960


@pytest.mark.parametrize("name", list(all_methods()))
def test_every_method_gets_the_images_it_needs(name: str) -> None:
    case = replace(TINY, method=name)
    dataset, split = synthetic(case)
    parts = [split.labelled, split.unlabelled, split.heldout]
    assert len(np.unique(np.concatenate(parts))) == sum(map(len, parts)) <= len(dataset.train)
    assert min(split.labelled_counts) >= 1
    needs = all_methods()[name].needs
    assert (len(split.unlabelled) == 0) == (Needs.POOL_LABELS in needs)
    assert config_of(case, dataset).method.name == name


def test_breakdown_adds_up() -> None:
    parts = {"forward": 3.0, "backward": 5.0, "optimiser": 0.25, "ema": 0.25}
    reports = {
        "step": [report(10.0, before=0.5)] * 5,
        "ready": [report(9.0, before=0.64, **parts)] * 5,
        "views": [report(0.75)] * 5,
        "gri": [report(1.0)] * 5,
    }
    facts = breakdown(reports, log_every=64)
    expected = {
        "network": 7.0,
        "gri": 1.0,
        "optimiser": 0.25,
        "ema": 0.25,
        "logging": 0.01,
        "data wait": 0.5,
        "rest": 0.99,
    }
    assert {name: facts[f"{name} s"] for name in expected} == pytest.approx(expected)
    assert sum(expected.values()) == pytest.approx(10.0)
    assert facts["without the network share"] == pytest.approx(0.3)
    assert facts["data wait share"] == pytest.approx(0.05)


def test_a_pool_of_any_size_repeats_its_first_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("suite.growth.BLOCK", 10)
    images = np.load(write_pool(tmp_path, 25, 8), mmap_mode="r")
    assert images.shape == (25, 8, 8, 3) and np.array_equal(images[20:], images[:5])
    assert len(np.unique(images[:10].reshape(10, -1), axis=0)) == 10


def test_a_pool_that_does_not_fit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Space(free=1000))
    with pytest.raises(UserError, match="TMPDIR"):
        write_pool(tmp_path, 100, 8)


@pytest.mark.usefixtures("double")
def test_plain_gri_is_the_contract_s_dense_form() -> None:
    z = functional.normalize(torch.randn(20, 7, generator=torch.Generator().manual_seed(0)))
    weak, strong = (part.clone().requires_grad_() for part in z.split(10))
    value, left_out = plain_contrast(weak, strong, simplex_anchors(7), 0.1, 5, 2.0, 0.5, 0.25)
    dense = contrast_loss(weak, strong, exact="dense")
    torch.testing.assert_close(value, dense, rtol=1e-12, atol=0)
    for own, other in zip(*(torch.autograd.grad(loss, (weak, strong)) for loss in (value, dense)), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-9, atol=1e-14)
    torch.testing.assert_close(value - left_out, contrast_loss(weak, strong), rtol=1e-10, atol=0)


def test_a_picture_of_rows_with_and_without_a_pair() -> None:
    rows = [Row("one", [1.0, 1.1], [2.0, 2.4]), Row("alone", [3.0]), Row("failed", facts={"not measured": "why"})]
    left, right = draw(Result("gri", "GRI", rows)).axes
    assert [label.get_text() for label in left.get_yticklabels()] == ["one", "alone"]
    assert "Times faster" in right.get_title()
