"""Checkpoints: only intact ones of the same run are taken, and the last good one survives whatever happens."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from method_cases import make_batches, make_split, make_state
from safetensors.torch import save_file

import unissl.utils.atomic
from unissl.errors import UserError
from unissl.methods.sage import SAGEConfig
from unissl.training import checkpoint
from unissl.training.checkpoint import TrainState
from unissl.training.trainer import step_at

SPLIT, CONFIG = make_split(3), SAGEConfig().for_data(3)


def make(seed: int = 0) -> TrainState:
    return make_state(CONFIG, SPLIT, seed=seed, net="small")


def trained() -> TrainState:
    state = make()
    batch = make_batches(CONFIG, SPLIT).at(0)
    torch.autograd.backward(state.learner.losses(batch, step_at(0, 4, 1)).total)
    state.optimizer.step()
    state.ema.update(state.learner)
    state.step = 1
    return state


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint.save(tmp_path_factory.mktemp("run") / "checkpoints", trained(), "hash", 17)


@pytest.fixture
def copy(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(good, tmp_path))


def refused(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        checkpoint.restore(path, make(seed=1), "hash")
    return str(caught.value)


def header_size(path: Path) -> int:
    """Eight bytes give the length of the header that follows them."""
    return 8 + int.from_bytes(path.read_bytes()[:8], "little")


def test_everything_comes_back(good: Path) -> None:
    saved, restored = trained(), make(seed=1)
    drawn = torch.rand(3)
    meta = checkpoint.restore(good, restored, "hash")
    assert (restored.step, meta["metrics_size"]) == (1, 17)
    for name, value in saved.learner.state_dict().items():
        assert torch.equal(value, restored.learner.state_dict()[name]), name
    for name, value in saved.ema.shadow.items():
        assert torch.equal(value, restored.ema.shadow[name]), name
    ours, theirs = (state.optimizer.state_dict()["state"] for state in (saved, restored))
    assert ours.keys() == theirs.keys() and len(ours) > 0
    assert all(torch.equal(ours[i]["momentum_buffer"], theirs[i]["momentum_buffer"]) for i in ours)
    checkpoint.restore(good, make(seed=1), "hash")
    first = torch.rand(3)
    checkpoint.restore(good, make(seed=1), "hash")
    assert torch.equal(first, torch.rand(3)) and not torch.equal(first, drawn)


@pytest.mark.parametrize("share", [0.0, 1e-5, 0.002, 0.02, 0.5, 0.9, 0.99999])
def test_a_truncated_file_is_refused(copy: Path, share: float) -> None:
    whole = copy.read_bytes()
    copy.write_bytes(whole[: int(share * len(whole))])
    message = refused(copy)
    assert str(copy) in message and "delete it to continue from the one before" in message


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999999])
def test_a_flipped_bit_in_the_tensors_is_refused(copy: Path, share: float) -> None:
    content = bytearray(copy.read_bytes())
    start = header_size(copy)
    content[start + int(share * (len(content) - start))] ^= 1
    copy.write_bytes(content)
    assert "not an intact checkpoint" in refused(copy)


def test_a_flipped_bit_anywhere_in_the_description_is_refused(copy: Path) -> None:
    """Step, configuration and size of the metrics stand in the header, which the digest covers too."""
    whole = copy.read_bytes()
    start = whole.index(b'"unissl"')
    end = whole.index(b'"}', start) + 2
    assert b"metrics_size" in whole[start:end]
    for position in range(start, end):
        content = bytearray(whole)
        content[position] ^= 1
        copy.write_bytes(content)
        assert "not an intact checkpoint" in refused(copy), position


def test_a_flipped_bit_in_the_table_of_tensors_is_refused(copy: Path) -> None:
    whole = copy.read_bytes()
    for position in range(0, header_size(copy), 97):
        content = bytearray(whole)
        content[position] ^= 4
        copy.write_bytes(content)
        assert "not an intact checkpoint" in refused(copy), position


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    foreign = tmp_path / "step-00000001.safetensors"
    save_file({"weight": torch.zeros(3)}, foreign)
    assert "not an intact checkpoint" in refused(foreign)
    for text in ("not json", json.dumps({"format": "unissl-checkpoint-1"})):
        save_file({"weight": torch.zeros(3)}, foreign, metadata={"unissl": text})
        assert "not an intact checkpoint" in refused(foreign), text
    foreign.write_text("hello")
    assert "not an intact checkpoint" in refused(foreign)
    foreign.unlink()
    assert "not an intact checkpoint" in refused(foreign)
    foreign.mkdir()
    assert "not an intact checkpoint" in refused(foreign)


def test_another_configuration_is_refused(good: Path) -> None:
    with pytest.raises(UserError, match="another configuration"):
        checkpoint.restore(good, make(), "other hash")


def test_a_refused_file_changes_nothing(copy: Path) -> None:
    content = bytearray(copy.read_bytes())
    content[-1] ^= 1
    copy.write_bytes(content)
    state, untouched = make(seed=1), make(seed=1)
    with pytest.raises(UserError):
        checkpoint.restore(copy, state, "hash")
    assert state.step == 0
    for name, value in untouched.learner.state_dict().items():
        assert torch.equal(value, state.learner.state_dict()[name])


def test_the_two_newest_are_kept_and_drafts_are_not_listed(tmp_path: Path) -> None:
    state = make()
    for step in (9, 10, 11, 100):
        state.step = step
        checkpoint.save(tmp_path, state, "hash", 0)
    (tmp_path / ".step-00000200.safetensors.1.draft").touch()
    (tmp_path / "step-200.safetensors.bak").touch()
    names = [path.name for path in checkpoint.list_checkpoints(tmp_path)]
    assert names == ["step-00000011.safetensors", "step-00000100.safetensors"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failing_write_leaves_the_last_good_one(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = trained()
    for step in (1, 2):
        state.step = step
        checkpoint.save(tmp_path, state, "hash", 0)

    def writes_a_part(tensors: object, path: Path, metadata: object) -> None:
        path.write_bytes(b"half a checkpoint")
        raise error

    monkeypatch.setattr(unissl.utils.atomic, "save_file", writes_a_part)
    state.step = 3
    with pytest.raises(UserError if isinstance(error, OSError) else KeyboardInterrupt):
        checkpoint.save(tmp_path, state, "hash", 0)
    assert [path.name for path in sorted(tmp_path.iterdir())] == [f"step-0000000{i}.safetensors" for i in (1, 2)]
    restored = make(seed=1)
    checkpoint.restore(checkpoint.list_checkpoints(tmp_path)[-1], restored, "hash")
    assert restored.step == 2
