"""Views of features against a slow reference, and that their address decides everything."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from unissl.augment import AugmentConfig
from unissl.augment.feature_views import FeatureViews
from unissl.ops.keyed_random import uniform_table

N, D = 9, 12
ROWS = np.array([4, 0, 4, 8, 2])
ADDRESS = {"seed": 3, "step": 5, "stream": "unlabelled"}


def make(copies: int = 3, dropout: float = 0.5) -> FeatureViews:
    vectors = np.random.default_rng(0).normal(1.0, 1.0, (N, 1 + copies, D)).astype(np.float32)
    return FeatureViews(vectors, AugmentConfig(feature_dropout=dropout, cached_views=copies), torch.device("cpu"))


def test_shape_and_length() -> None:
    assert make().shape == (D,) and len(make()) == N


@pytest.mark.parametrize("view", ["none", "weak"])
def test_the_weak_view_is_the_clean_vector(view: str) -> None:
    views = make()
    assert torch.equal(views(view, ROWS, **ADDRESS), torch.from_numpy(views.features[ROWS, 0]))


@pytest.mark.parametrize("view", ["flip", "weak2"])
@pytest.mark.parametrize("stream", ["labelled", "unlabelled", "pool"])
def test_a_second_weak_view_lacks_entries_of_its_own(view: str, stream: str) -> None:
    """Equal views would make the consistency losses of SSB and CaliMatch zero."""
    views = make()
    clean = torch.from_numpy(views.features[ROWS, 0])
    keep = uniform_table(3, 5, stream, view, len(ROWS), 1 + D)[:, 1:] >= 0.1
    second = views(view, ROWS, seed=3, step=5, stream=stream)
    torch.testing.assert_close(second, torch.where(keep, clean / 0.9, torch.zeros(())))
    assert not torch.equal(second, views("weak", ROWS, seed=3, step=5, stream=stream))


def test_a_second_weak_view_of_labelled_images_lacks_as_much_as_the_first() -> None:
    config = AugmentConfig(labelled_feature_dropout=0.25, second_view_dropout=0.1)
    views = FeatureViews(make().features, config, torch.device("cpu"))
    kept = uniform_table(3, 5, "labelled", "flip", len(ROWS), 1 + D)[:, 1:] >= 0.25
    assert torch.equal(views("flip", ROWS, seed=3, step=5, stream="labelled") != 0, kept)


@pytest.mark.parametrize("copies", [0, 1, 3])
@pytest.mark.parametrize("dropout", [0.0, 0.3, 0.5])
@pytest.mark.parametrize("view", ["strong", "strong2"])
def test_strong_view_entry_by_entry(copies: int, dropout: float, view: str) -> None:
    """The first number of a row chooses the copy; each of the others decides about one entry."""
    views = make(copies, dropout)
    draws = uniform_table(3, 5, "unlabelled", view, len(ROWS), 1 + D).tolist()
    wanted = []
    for row, (first, *others) in zip(ROWS, draws, strict=True):
        copy = next(c for c in range(copies) if first < (c + 1) / copies) + 1 if copies else 0
        vector = views.features[row, copy].tolist()
        wanted.append([x / (1 - dropout) if u >= dropout else 0.0 for x, u in zip(vector, others, strict=True)])
    torch.testing.assert_close(views(view, ROWS, **ADDRESS), torch.tensor(wanted))


def test_weak_views_of_labelled_images_may_lack_entries_too() -> None:
    """Of the clean vector, and in training alone: what is predicted or scanned is whole."""
    settings = AugmentConfig(feature_dropout=0.9, labelled_feature_dropout=0.25, cached_views=3)
    views = FeatureViews(make().features, settings, torch.device("cpu"))
    clean = torch.from_numpy(views.features[ROWS, 0])
    keep = uniform_table(3, 5, "labelled", "weak", len(ROWS), 1 + D)[:, 1:] >= 0.25
    assert 0 < int((~keep).sum()) < keep.numel()
    made = views("weak", ROWS, seed=3, step=5, stream="labelled")
    torch.testing.assert_close(made, torch.where(keep, clean / 0.75, torch.zeros(())))
    for view, stream in (("none", "labelled"), ("weak", "unlabelled"), ("weak", "scan-labelled")):
        assert torch.equal(views(view, ROWS, seed=3, step=5, stream=stream), clean)


def test_every_copy_is_drawn_about_as_often_and_never_the_clean_vector() -> None:
    vectors = np.broadcast_to(np.arange(4, dtype=np.float32)[None, :, None], (1, 4, 1))
    views = FeatureViews(vectors, AugmentConfig(feature_dropout=0.0), torch.device("cpu"))
    counts = np.bincount(views("strong", np.zeros(3000, np.int64)).flatten().long().numpy(), minlength=4)
    assert counts[0] == 0 and (abs(counts[1:] - 1000) < 150).all()


def test_dropping_keeps_the_mean() -> None:
    vectors = np.ones((1, 2, 50), np.float32)
    views = FeatureViews(vectors, AugmentConfig(feature_dropout=0.3), torch.device("cpu"))
    made = views("strong", np.zeros(2000, np.int64))
    assert made.unique().tolist() == [0.0, pytest.approx(1 / 0.7)]
    assert made.mean().item() == pytest.approx(1.0, abs=0.01)  # five deviations of 100,000 draws
    assert (made == 0).float().mean().item() == pytest.approx(0.3, abs=0.01)


def test_the_address_decides() -> None:
    views = make()
    first = views("strong", ROWS, **ADDRESS)
    assert torch.equal(first, make()("strong", ROWS, **ADDRESS))
    for other in ({"seed": 4}, {"step": 6}, {"stream": "pool"}):
        assert not torch.equal(first, views("strong", ROWS, **{**ADDRESS, **other}))
    assert not torch.equal(first, views("strong2", ROWS, **ADDRESS))


@pytest.mark.parametrize("view", ["weak", "weak2", "strong"])
def test_part_of_a_batch_equals_the_whole(view: str) -> None:
    views = make()
    whole = views(view, ROWS, **ADDRESS)
    for part in (slice(0, 2), slice(2, 5), slice(4, 5)):
        assert torch.equal(views(view, ROWS[part], **ADDRESS, positions=part), whole[part])


def test_vectors_are_scaled_before_entries_are_dropped() -> None:
    plain = make(copies=0)
    shifted = FeatureViews(plain.features, plain.config, plain.device, lambda x: x + 100)
    weak, strong = (shifted(view, ROWS, **ADDRESS) for view in ("weak", "strong"))
    assert torch.equal(weak, plain("weak", ROWS) + 100)
    assert ((strong == 0) | (strong > 150)).all() and (strong == 0).any()


def test_vectors_follow_the_default_precision(double: object) -> None:
    assert make()("weak", ROWS).dtype == make()("strong", ROWS).dtype == torch.float64


def test_memory_mapped_vectors(tmp_path: object) -> None:
    views = make()
    np.save(f"{tmp_path}/vectors.npy", views.features)
    mapped = FeatureViews(np.load(f"{tmp_path}/vectors.npy", mmap_mode="r"), views.config, views.device)
    assert torch.equal(mapped("strong", ROWS, **ADDRESS), views("strong", ROWS, **ADDRESS))


def test_wrong_calls() -> None:
    with pytest.raises(ValueError, match="unknown view 'strongish'"):
        make()("strongish", ROWS)
    with pytest.raises(ValueError, match="one position in the global batch per row"):
        make()("strong", ROWS, positions=slice(0, 3))
