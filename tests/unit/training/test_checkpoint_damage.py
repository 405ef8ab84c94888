"""Every way in which a file can be cut or spoilt: the checkpoint before it is taken, and the user is told."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from method_cases import make_split, make_state

from unissl.methods.sage import SAGEConfig
from unissl.training import checkpoint
from unissl.training.checkpoint import TrainState

SPLIT, CONFIG = make_split(3), SAGEConfig().for_data(3)
NEWEST = "step-00000002.safetensors"


def make(seed: int = 0) -> TrainState:
    return make_state(CONFIG, SPLIT, seed=seed, net="small")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, state = tmp_path_factory.mktemp("saved"), make()
    for state.step in (1, 2):
        checkpoint.save(folder, state, "hash", 10 * state.step)
    return folder


@pytest.fixture(scope="module")
def blank() -> TrainState:
    return make(seed=1)


def header_end(whole: bytes) -> int:
    return 8 + int.from_bytes(whole[:8], "little")


def tensor_places(whole: bytes) -> list[tuple[int, int]]:
    """First byte and end of every tensor that has any, counted from the start of the file."""
    start = header_end(whole)
    table = json.loads(whole[8:start])
    spans = [entry["data_offsets"] for name, entry in table.items() if name != "__metadata__"]
    return sorted((start + first, start + end) for first, end in spans if end > first)


def cuts(whole: bytes) -> Iterator[tuple[str, bytes]]:
    """One file for each class of places where it can end."""
    end = header_end(whole)
    places = {"empty": 0, "in the length": 3, "after the length": 8, "in the header": 8 + (end - 8) // 2, "header": end}
    for name, place in places.items():
        yield name, whole[:place]
    for first, last in tensor_places(whole):
        yield f"at the start of a tensor, {first}", whole[:first]
        yield f"in a tensor, {first}", whole[: (first + last) // 2]
    yield "one byte short", whole[:-1]
    yield "one byte too many", whole + b"\0"
    yield "twice", whole + whole


def flips(whole: bytes) -> Iterator[tuple[str, bytes]]:
    """A flipped bit in each byte of the length, some of the header, and one of each tensor."""
    end = header_end(whole)
    places = [
        *range(8),
        *range(8, end, max(1, end // 50)),
        *((first + last) // 2 for first, last in tensor_places(whole)),
    ]
    for number, place in enumerate(places):
        content = bytearray(whole)
        content[place] ^= 1 << number % 8
        yield f"bit {number % 8} of byte {place}", bytes(content)


@pytest.mark.parametrize("kind", [cuts, flips])
def test_the_one_before_is_taken(
    saved: Path, blank: TrainState, tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: object
) -> None:
    assert callable(kind)
    whole, tried = (saved / NEWEST).read_bytes(), 0
    for name, content in kind(whole):
        folder = Path(shutil.copytree(saved, tmp_path / str(tried)))
        (folder / NEWEST).write_bytes(content)
        blank.step = 0
        header = checkpoint.restore_newest(folder, blank, "hash")
        assert header is not None and (blank.step, header["metrics_size"]) == (1, 10), name
        warnings = caplog.text
        assert f"{NEWEST} is not an intact checkpoint" in warnings, name
        assert "before, step-00000001.safetensors" in warnings, name
        caplog.clear()
        assert (folder / f"{NEWEST}.damaged").read_bytes() == content, name
        shutil.rmtree(folder)
        tried += 1
    assert tried > 30


def test_what_is_put_aside_no_longer_counts(saved: Path, tmp_path: Path) -> None:
    """Two good ones are kept beside it, and the same step can be saved again."""
    folder, state = Path(shutil.copytree(saved, tmp_path / "run")), make()
    (folder / NEWEST).write_bytes(b"")
    checkpoint.restore_newest(folder, state, "hash")
    for state.step in (2, 3):
        checkpoint.save(folder, state, "hash", 0)
    assert sorted(path.name for path in folder.iterdir()) == [NEWEST, f"{NEWEST}.damaged", "step-00000003.safetensors"]
    assert checkpoint.restore_newest(folder, make(), "hash") is not None


def test_an_intact_one_is_taken_without_a_word(
    saved: Path, blank: TrainState, caplog: pytest.LogCaptureFixture
) -> None:
    header = checkpoint.restore_newest(saved, blank, "hash")
    assert header is not None and header["step"] == 2 and caplog.messages == []


def test_nothing_is_restored_by_halves(saved: Path, tmp_path: Path) -> None:
    """A state that met only damaged files is as it was."""
    folder = Path(shutil.copytree(saved, tmp_path / "run"))
    for path in folder.iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    state, untouched = make(seed=1), make(seed=1)
    assert checkpoint.restore_newest(folder, state, "hash") is None and state.step == 0
    for name, value in untouched.learner.state_dict().items():
        assert torch.equal(value, state.learner.state_dict()[name])
