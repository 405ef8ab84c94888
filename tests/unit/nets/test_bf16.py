"""Networks in bfloat16: only where a CPU computes in it, near the exact one, which is left as it was."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
import torch

from unissl.nets import build
from unissl.nets.base import Network
from unissl.nets.bf16 import bf16_matmul, cpu_supports_bf16, start_trial, survives, to_bf16

NEEDS_HALF = pytest.mark.skipif(not cpu_supports_bf16(), reason="needs a CPU that computes in bfloat16")


@pytest.fixture
def lite() -> Network:
    torch.manual_seed(0)
    return build("efficientnet-lite0", 3, 3).eval()


@NEEDS_HALF
def test_the_copy_is_near_and_the_original_untouched(lite: Network) -> None:
    half = to_bf16(lite)
    assert {parameter.dtype for parameter in half.parameters()} == {torch.bfloat16}
    assert {parameter.dtype for parameter in lite.parameters()} == {torch.float32}
    x = torch.randn(4, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        exact, near = lite(x).feat, half(x.to(torch.bfloat16)).feat.float()
    assert 0 < (near - exact).norm() / exact.norm() < 0.1


def test_others_stay_as_they_are(lite: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    assert lite.backbone is not None and lite.backbone.bf16_safe
    monkeypatch.setattr("unissl.nets.bf16.cpu_supports_bf16", lambda: False)
    assert to_bf16(lite) is lite
    monkeypatch.undo()
    double, other = build("efficientnet-lite0", 3, 3).double(), build("wrn-10-1", 3, 3)
    assert to_bf16(double) is double and to_bf16(other) is other


@pytest.mark.parametrize("half", [pytest.param(True, marks=NEEDS_HALF), False])
def test_products_in_half_leave_weights_and_layers_as_they_are(
    half: bool, lite: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients are near the exact ones, in float32, and behind it the layers are exact again."""
    monkeypatch.setattr("unissl.nets.bf16.cpu_supports_bf16", lambda: half)
    stages = lite.stages["stage6"]
    x = torch.randn(4, 112, 6, 6, generator=torch.Generator().manual_seed(1)).to(memory_format=torch.channels_last)

    def gradients() -> list[torch.Tensor]:
        return list(torch.autograd.grad(stages(x).square().mean(), list(stages.parameters())))

    exact = gradients()
    with bf16_matmul(stages):
        inside = gradients()
    error = max(float((one - two).norm() / one.norm()) for one, two in zip(exact, inside, strict=True))
    assert (0 < error < 0.1) if half else error == 0
    assert {gradient.dtype for gradient in inside} == {torch.float32}
    assert all(torch.equal(one, two) for one, two in zip(exact, gradients(), strict=True))


@pytest.mark.parametrize(
    ("able", "expected"), [({"avx512_bf16": True}, True), ({"avx512_bf16": False, "avx2": True}, False), ({}, False)]
)
def test_only_instructions_of_its_own_count(
    able: dict[str, bool], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: able, raising=False)
    monkeypatch.setattr("unissl.nets.bf16.survives", lambda trial: True)
    assert cpu_supports_bf16() is expected
    monkeypatch.setenv("UNISSL_DISABLE_BF16", "1")
    assert not cpu_supports_bf16()


def test_instructions_that_kill_are_found_out_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert survives("pass") and not survives("import os; os.kill(os.getpid(), 4)")
    monkeypatch.setattr("sys.executable", "/no/such/python")
    assert not survives("pass # once more")
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: {"amx_bf16": True}, raising=False)
    monkeypatch.setattr("unissl.nets.bf16.survives", lambda trial: False)
    assert not cpu_supports_bf16()


def test_a_torch_that_cannot_say_is_taken_at_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("torch.cpu.get_capabilities", raising=False)
    assert not cpu_supports_bf16()


def test_a_trial_that_was_started_early_is_the_one_that_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: {"amx_bf16": True}, raising=False)
    monkeypatch.setattr("unissl.nets.bf16.TRIAL", "pass # started early")
    started, really = [], subprocess.Popen

    def spied(*arguments: Any, **named: Any) -> Any:
        started.append(arguments[0][-1])
        return really(*arguments, **named)

    monkeypatch.setattr("subprocess.Popen", spied)
    start_trial()
    assert started == ["pass # started early"] and cpu_supports_bf16() and len(started) == 1
    monkeypatch.setenv("UNISSL_DISABLE_BF16", "1")
    monkeypatch.setattr("unissl.nets.bf16.TRIAL", "pass # not wanted")
    start_trial()
    assert len(started) == 1


def test_a_trial_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unissl.nets.bf16.TRIAL_SECONDS", 0.2)
    assert not survives("import time; time.sleep(60)")
