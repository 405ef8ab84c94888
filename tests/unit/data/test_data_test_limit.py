"""data.test_limit: fewer test images, always the same ones."""

from __future__ import annotations

import numpy as np

from unissl.data import DataConfig, load


def test_a_limit_takes_the_same_test_images_every_time_and_leaves_the_rest() -> None:
    whole = load(DataConfig(name="digits", image_size=8))
    some, again = (load(DataConfig(name="digits", image_size=8, test_limit=100)) for _ in range(2))
    assert whole.test is not None and some.test is not None and again.test is not None
    assert len(some.test) == 100 and len(whole.test) == 500
    assert np.array_equal(some.test.images, again.test.images) and np.array_equal(some.test.labels, again.test.labels)
    assert len(set(some.test.labels)) == 10
    known = {image.tobytes(): label for image, label in zip(whole.test.images, whole.test.labels, strict=True)}
    assert all(known[image.tobytes()] == label for image, label in zip(some.test.images, some.test.labels, strict=True))
    assert np.array_equal(some.train.images, whole.train.images)


def test_a_limit_beyond_the_test_images_changes_nothing() -> None:
    some = load(DataConfig(name="digits", image_size=8, test_limit=5000))
    assert some.test is not None and len(some.test) == 500
