"""Pipes where files are expected: every reader says so at once. The command would wait for ever, some of it deaf."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from readers.run_folder import lay_run

from unissl.cli.options import combine_overrides
from unissl.config import read_toml
from unissl.data.folder.labels import _read_text
from unissl.data.sources.checksums import require_checksum
from unissl.data.sources.fashion_mnist import read_idx
from unissl.data.sources.npz import read_array
from unissl.data.sources.stl10 import _read_labels
from unissl.inference.journal import _hash_of_model
from unissl.inference.model import load_weights
from unissl.nets.external.safetensors_file import read_weights
from unissl.report.html import run_facts
from unissl.report.load_run import read_record
from unissl.run.predictions_io import read_files, read_test_predictions
from unissl.run_folder import RunFolder
from unissl.splits import read_split
from unissl.training.checkpoint import _read as read_checkpoint
from unissl.utils.atomic import read_json
from unissl.utils.cache import _open as open_entry

pytestmark = [pytest.mark.adversary, pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")]
SECONDS = 20
READERS: dict[str, tuple[str, Callable[[RunFolder, Path], object]]] = {
    "manifest": ("manifest.json", lambda run, path: read_json(path)),
    "config": ("config.toml", lambda run, path: read_toml(path)),
    "summary": ("summary.json", lambda run, path: read_record(run)),
    "metrics": ("metrics.jsonl", lambda run, path: run.read_metrics()),
    "split": ("split.json", lambda run, path: read_split(path)),
    "predictions": ("predictions.parquet", lambda run, path: read_files(path)),
    "test predictions": ("test_predictions.parquet", lambda run, path: read_test_predictions(run, 3)),
    "model": ("model.safetensors", lambda run, path: load_weights(__import__("torch").nn.Linear(1, 1), run)),
    "hash of the model": ("model.safetensors", lambda run, path: _hash_of_model(run)),
    "hash of the split": ("split.json", lambda run, path: run_facts(read_record(run))),
    "checkpoint": ("step-00000001.safetensors", lambda run, path: read_checkpoint(path)),
    "weights": ("weights.safetensors", lambda run, path: read_weights(str(path))),
    "labels": ("labels.csv", lambda run, path: _read_text(path)),
    "published file": ("test_batch", lambda run, path: require_checksum(path, "test_y.bin")),
    "idx": ("t10k-images-idx3-ubyte", lambda run, path: read_idx(path, 3)),
    "npz": ("val_data.npz", lambda run, path: read_array(path, "data")),
    "stl10": ("test_y.bin", lambda run, path: _read_labels(path.parent, "test", 1)),
    "cache entry": ("manifest.json", lambda run, path: open_entry(path.parent)),
}


def in_time(call: Callable[[], object]) -> str:
    """What the call raises, in a process of its own, since some readers cannot be interrupted; "" for nothing."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def report() -> None:
        try:
            call()
            sender.send("")
        except Exception as error:
            sender.send(str(error))

    process = context.Process(target=report, daemon=True)
    process.start()
    try:
        assert receiver.poll(SECONDS), "waits for the other end of the pipe"
        text: str = receiver.recv()
        return text
    finally:
        process.kill()
        process.join()


@pytest.mark.parametrize("name", READERS)
def test_a_pipe_is_refused_where_a_file_is_expected(name: str, tmp_path: Path) -> None:
    file, read = READERS[name]
    run = lay_run(tmp_path)
    if file != "model.safetensors":
        run.model.touch()
    (tmp_path / file).unlink(missing_ok=True)
    os.mkfifo(tmp_path / file)
    said = in_time(lambda: read(run, tmp_path / file))
    assert "\n" not in said and (file in said or name == "cache entry")


def test_the_user_may_name_a_pipe(tmp_path: Path) -> None:
    """As in ``--config <(command)``."""
    path = tmp_path / "config.toml"
    os.mkfifo(path)
    writer = multiprocessing.get_context("fork").Process(target=path.write_text, args=("[train]\nsteps = 7\n",))
    writer.start()
    assert combine_overrides({}, path, ()) == {"train": {"steps": 7}}
    writer.join()
