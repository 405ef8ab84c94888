"""Every method does the same on one process and on more, up to rounding in float64: losses of twenty steps, weights and
state after them.

``benchmarks/processes.py`` compares all methods on four processes too, which takes a minute more.
"""

from __future__ import annotations

import pytest
import torch
from process_cases import CASES, STEPS, TOLERANCE, Trained, relative, trained_all, trained_on_300_classes
from process_group import on_processes

ON_FOUR = ["cdmad", "cpg", "meta-expert", "sage-default", "sage-paper", "sage-released"]
"""SAGE, and the methods that use the network in unusual ways."""

Results = dict[int, list[dict[str, Trained]]]


@pytest.fixture(scope="module")
def results() -> Results:
    """By number of processes, what each of them found."""
    return {1: [trained_all()], 2: on_processes(2, trained_all), 4: on_processes(4, trained_all, ON_FOUR)}


@pytest.mark.parametrize(("case", "size"), [*((case, 2) for case in CASES), *((case, 4) for case in ON_FOUR)])
def test_losses_and_weights_are_those_of_one_process(results: Results, case: str, size: int) -> None:
    (losses, tensors), (other_losses, other_tensors) = results[1][0][case], results[size][0][case]
    assert losses.keys() == other_losses.keys() and tensors.keys() == other_tensors.keys()
    for name, curve in losses.items():
        assert len(curve) == STEPS
        assert other_losses[name] == pytest.approx(curve, rel=TOLERANCE, abs=1e-12), name
    far = {name: relative(value, other_tensors[name]) for name, value in tensors.items()}
    assert max(far.values()) < TOLERANCE, max(far, key=far.__getitem__)


@pytest.mark.parametrize("case", CASES)
def test_all_processes_end_bit_for_bit_alike(results: Results, case: str) -> None:
    first, second = (process[case][1] for process in results[2])
    assert [name for name, value in first.items() if not torch.equal(value, second[name])] == []


def test_cgmatch_remembers_more_classes_than_a_byte_can_number() -> None:
    """Its memory of predictions is int16 then, which gloo does not send as it is."""
    _, alone = trained_on_300_classes("cgmatch")
    assert torch.int16 in {value.dtype for value in alone.values()}
    for _, tensors in on_processes(2, trained_on_300_classes, "cgmatch"):
        assert max(relative(value, tensors[name]) for name, value in alone.items()) < TOLERANCE


def test_the_twenty_steps_show_what_methods_do(results: Results) -> None:
    """The comparison would be worth little if images never joined or a loss never was in use."""
    one = results[1][0]
    assert bool(one["cpg"][1]["method.chosen"].any())
    for case, (losses, _) in one.items():
        for name, curve in losses.items():
            assert any(value != 0 for value in curve), f"{case}: {name}"
