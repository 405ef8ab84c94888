"""Keyed random numbers: reproducible, independent of how a batch is cut, different for every key."""

from __future__ import annotations

import torch
from scipy import stats

from unissl.ops.keyed_random import uniform_table

KEY = (3, 17, "unlabelled", "strong")
"""seed, step, stream, view"""
GOLDEN = [[0.7583827565064364, 0.9853101436174883], [0.287976267966328, 0.4065216368763618]]


def test_shape_type_and_range() -> None:
    table = uniform_table(*KEY, 448, 12)
    assert table.shape == (448, 12) and table.dtype == torch.float64 and table.device.type == "cpu"
    assert table.min() >= 0 and table.max() < 1
    assert uniform_table(*KEY, 5, 0).shape == (5, 0)


def test_more_rows_only_append() -> None:
    long = uniform_table(*KEY, 448, 12)
    for rows in (0, 1, 7, 224, 447):
        assert torch.equal(uniform_table(*KEY, rows, 12), long[:rows])


def test_same_in_every_process_and_on_every_machine() -> None:
    """Known numbers: a key hashed by Python itself would change from process to process."""
    assert uniform_table(*KEY, 2, 2).tolist() == GOLDEN


def test_every_part_of_the_key_counts() -> None:
    """Different keys give unrelated tables; false-alarm rate about 4e-6 in all (5 sigma, 6 keys)."""
    base = uniform_table(*KEY, 100, 100).flatten()
    others = [
        (4, 17, "unlabelled", "strong"),
        (3, 18, "unlabelled", "strong"),
        (3, 17, "labelled", "strong"),
        (3, 17, "unlabelled", "strong2"),
        (3, 17, "strong", "unlabelled"),
        (17, 3, "unlabelled", "strong"),
    ]
    for key in others:
        other = uniform_table(*key, 100, 100).flatten()
        correlation = torch.corrcoef(torch.stack([base, other]))[0, 1].item()
        assert abs(correlation) < 5 / 100  # its standard deviation is 1 / sqrt(10000)


def test_uniform_over_steps() -> None:
    """First number of 4000 consecutive steps, Kolmogorov-Smirnov; false-alarm rate 1e-3, and the seed is fixed."""
    firsts = [uniform_table(0, step, "unlabelled", "weak", 1, 1).item() for step in range(4000)]
    assert stats.kstest(firsts, "uniform").pvalue > 1e-3
