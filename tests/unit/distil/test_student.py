"""Training the last stages of a backbone on the maps that enter them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from unissl.distil import DistilConfig, DistilSet, Student, train_student
from unissl.distil.student import distil_steps, lr_factor, select_maps
from unissl.features import FeatureScaler, FrozenBackbone, WithBackbone, load_backbone, tail_stages
from unissl.features.backbone import frozen_stages
from unissl.nets.heads import LinearHead

LITE0 = "efficientnet-lite0"
CPU = torch.device("cpu")
CLASSES, IMAGES = 3, 26
CONFIG = DistilConfig(epochs=2.0, batch=8, lr=1e-3)


@pytest.fixture
def front() -> FrozenBackbone:
    torch.manual_seed(0)
    net = load_backbone(LITE0, 3, pretrained=False)
    return FrozenBackbone(net, FeatureScaler(torch.zeros(1280), torch.ones(1280)))


@pytest.fixture
def images() -> torch.Tensor:
    """Three colours of noise, in this order again and again."""
    noise = torch.randn(IMAGES, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    return noise + 3 * torch.eye(3)[torch.arange(IMAGES) % 3][:, :, None, None]


def maps_of(front: FrozenBackbone, images: torch.Tensor) -> np.ndarray:
    """Two equal views of each image."""
    with torch.no_grad():
        maps = frozen_stages(front.net)(images).permute(0, 2, 3, 1).half().numpy()
    return np.repeat(maps[:, None], 2, axis=1)


def soft_labels() -> torch.Tensor:
    return torch.eye(CLASSES)[torch.arange(IMAGES) % CLASSES] * 0.94 + 0.02


def distil_set(front: FrozenBackbone, images: torch.Tensor) -> DistilSet:
    """All images, the first six of them labelled."""
    with torch.no_grad():
        features = front(images)
    return DistilSet(np.arange(IMAGES), np.arange(IMAGES) < 6, soft_labels(), features)


def trained(front: FrozenBackbone, images: torch.Tensor, config: DistilConfig = CONFIG, seed: int = 0) -> Student:
    return train_student(config, front, maps_of(front, images), distil_set(front, images), seed)


def test_only_the_last_stages_of_a_copy_move(front: FrozenBackbone, images: torch.Tensor) -> None:
    before = {name: value.clone() for name, value in front.state_dict().items()}
    student = trained(front, images)
    assert all(torch.equal(before[name], value) for name, value in front.state_dict().items())
    modules = dict(student.front.named_modules())
    for name, value in student.front.named_parameters():
        last = name.removeprefix("net.stages.").split(".")[0] in ("stage6", "stage7", "map")
        of_single_channels = modules[name.rpartition(".")[0]].groups > 1
        assert torch.equal(before[name], value) != (last and not of_single_channels), name


def test_it_learns_the_soft_labels(front: FrozenBackbone, images: torch.Tensor) -> None:
    """After training the loss is below that of the linear classifier it began with; after one tiny step it is not."""

    def loss(student: Student) -> float:
        logits = student.predict_logits(maps_of(front, images), np.arange(IMAGES), CPU)
        return float(-(soft_labels() * logits.log_softmax(1)).sum(1).mean())

    start = loss(trained(front, images, DistilConfig(epochs=0.01, batch=8, lr=1e-12)))
    assert loss(trained(front, images, DistilConfig(epochs=10.0, batch=8, lr=1e-3))) < 0.8 * start


def test_logits_from_maps_are_those_of_the_whole_network(front: FrozenBackbone, images: torch.Tensor) -> None:
    """But for maps being kept in half precision."""
    student = trained(front, images)
    with torch.no_grad():
        whole = WithBackbone(student.front, student.head)(images).logits  # type: ignore[attr-defined]
    rows = np.array([3, 0, 25])
    from_maps = student.predict_logits(maps_of(front, images), rows, CPU)
    torch.testing.assert_close(from_maps, whole[rows], atol=2e-2, rtol=2e-2)


def test_equal_seeds_give_equal_bits_and_torchs_generator_is_left_alone(
    front: FrozenBackbone, images: torch.Tensor
) -> None:
    state = torch.get_rng_state()
    one, two, other = (trained(front, images, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    weights = [student.head.head.weight for student in (one, two, other)]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])
    ours, same = one.front.state_dict(), two.front.state_dict()
    assert all(torch.equal(ours[name], same[name]) for name in ours)


@pytest.mark.parametrize("view", [0, 1])
def test_all_views_of_a_row_are_drawn(view: int, front: FrozenBackbone, images: torch.Tensor) -> None:
    """A view of nothing but NaN is found out."""
    maps = maps_of(front, images)
    maps[:, view] = np.nan
    student = train_student(CONFIG, front, maps, distil_set(front, images), 0)
    assert student.head.head.weight.isnan().any()


def test_maps_come_as_the_stages_take_them(front: FrozenBackbone, images: torch.Tensor) -> None:
    entering = select_maps(maps_of(front, images), np.array([4, 2]), np.array([0, 1]), CPU)
    with torch.no_grad():
        torch.testing.assert_close(entering, frozen_stages(front.net)(images[[4, 2]]), atol=1e-2, rtol=1e-2)
        torch.testing.assert_close(
            tail_stages(front.net)(frozen_stages(front.net)(images[:2])).mean((2, 3)),
            front.net(images[:2]).feat,
        )


def test_steps_and_rate() -> None:
    assert (
        distil_steps(DistilConfig(epochs=2.0, batch=64), 6273) == 196 and distil_steps(DistilConfig(epochs=0.1), 5) == 1
    )
    assert lr_factor(0, 100) == pytest.approx(1 / 20) and lr_factor(50, 100) == pytest.approx(0.5)
    assert lr_factor(25, 100) == pytest.approx(0.5 * (1 + math.cos(math.pi / 4))) and lr_factor(99, 100) < 0.001


def test_linear_head_gives_its_input_as_feature() -> None:
    net = LinearHead(5, 2)
    x = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    out = net(x)
    assert torch.equal(out.feat, x) and torch.allclose(out.logits, x @ net.head.weight.T + net.head.bias)
    assert not net.tap_dims


def test_labelled_rows_may_be_anywhere(front: FrozenBackbone, images: torch.Tensor) -> None:
    """The order of the rows decides which numbers are drawn, but not which rows count as labelled."""
    data, maps = distil_set(front, images), maps_of(front, images)
    moved = DistilSet(
        data.rows[::-1].copy(),
        data.is_labelled[::-1].copy(),
        *(values.flip(0) for values in (data.soft_labels, data.features)),
    )
    config = DistilConfig(epochs=0.01, batch=8, lr=1e-12)
    one, two = (train_student(config, front, maps, one_set, 0).head.head.weight for one_set in (data, moved))
    torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-4)
