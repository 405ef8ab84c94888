"""With a fixed number of shards every method does the same on 1, 2 and 4 processes, to the last bit of float32.

One test for all methods: tests that run side by side would each train them again.
"""

from __future__ import annotations

import torch
from process_cases import CASES, STEPS, Trained, trained_all
from process_group import on_processes

SHARDS = 4


def differences(one: Trained, other: Trained) -> list[str]:
    """Names of losses and tensors that are not equal."""
    (losses, tensors), (ours, found) = one, other
    assert losses.keys() == ours.keys() and tensors.keys() == found.keys()
    names = [name for name in losses if losses[name] != ours[name]]
    return names + [name for name in tensors if not torch.equal(tensors[name], found[name])]


def test_no_bit_depends_on_the_number_of_processes() -> None:
    (alone,) = on_processes(1, trained_all, CASES, torch.float32, SHARDS)
    for losses, tensors in alone.values():
        assert all(len(curve) == STEPS for curve in losses.values())
        assert {value.dtype for value in tensors.values() if value.is_floating_point()} == {torch.float32}
    for size in (2, 4):
        for rank, process in enumerate(on_processes(size, trained_all, CASES, torch.float32, SHARDS)):
            for case in CASES:
                assert differences(alone[case], process[case]) == [], f"{case} on process {rank} of {size}"
