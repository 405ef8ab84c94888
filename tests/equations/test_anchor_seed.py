"""method.anchor_seed turns the anchors; at K = d + 1 the loss does not notice, at smaller K it does."""

from __future__ import annotations

import pytest
import torch
from slow_reference import TinyNet, draw_batch

from unissl.methods.sage import SAGE, SAGEConfig
from unissl.types import DataInfo, Step

pytestmark = pytest.mark.usefixtures("double")


def con_loss(**settings: object) -> float:
    torch.manual_seed(0)
    net = TinyNet(feat_dim=4, num_classes=3)
    method = SAGE(SAGEConfig.model_validate(settings).for_data(3), DataInfo(3, 4, 9, (1, 1, 1)))
    batch = draw_batch(method.streams(method.cfg), 3, {"labelled": 3, "unlabelled": 5}, seed=1)
    return method.losses(net, batch, Step(iteration=0, total=10, period=0, periods=1)).terms["con"].item()


def test_at_full_number_the_seed_only_turns_them() -> None:
    assert con_loss(graph_impl="dense", anchor_seed=1) == pytest.approx(con_loss(graph_impl="dense"), rel=1e-9)


def test_with_fewer_anchors_the_seed_matters() -> None:
    assert abs(con_loss(num_anchors=3, anchor_seed=1) - con_loss(num_anchors=3)) > 1e-6
    assert con_loss(num_anchors=3, anchor_seed=0) == con_loss(num_anchors=3)
