"""``unissl predict`` over many files: stopped anywhere and started again, it ends with the same bytes."""

from __future__ import annotations

import csv
import fcntl
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from cli_helpers import Refuses, call, picture, succeed

from unissl.cli.predict import describe_threshold
from unissl.data import read_images
from unissl.evaluation.selective import trusted_threshold
from unissl.inference import journal
from unissl.inference import model as chunked
from unissl.inference.image_source import DecodedChunk
from unissl.inference.model import Model, load_model
from unissl.inference.prediction_table import RECORD, Records
from unissl.run.schema import selective_accuracies

FILES, SMALL_CHUNK = 110, 8
SLOWED_DOWN = f"""
import sys, time
from unissl.inference import model
model.CHUNK = {SMALL_CHUNK}
from unissl.cli import main
from unissl.inference.model import Model
original = Model.predict_pixels
def predict_pixels(*arguments):
    time.sleep(0.05)
    return original(*arguments)
Model.predict_pixels = predict_pixels
main(sys.argv[1:])
"""


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (chunked, journal):
        monkeypatch.setattr(module, "CHUNK", SMALL_CHUNK)


@pytest.fixture
def new(here: Path) -> Path:
    """Small pictures, one of them broken."""
    (here / "new").mkdir()
    for i in range(FILES):
        picture(i % 190, seed=i, side=8).save(here / "new" / f"{i:03}.png")
    (here / "new" / "050.png").write_text("hello")
    return here / "new"


@pytest.fixture
def stopped(
    finished_run: Path, new: Path, small_chunks: None, monkeypatch: pytest.MonkeyPatch
) -> Callable[[int], Path]:
    """Stop the command with Ctrl-C after some chunks; returns the partial file."""

    def stop(chunks: int) -> Path:
        original = journal.PredictionJournal.append

        def append(self: journal.PredictionJournal, records: Records) -> None:
            if self.done == chunks * SMALL_CHUNK:
                raise KeyboardInterrupt
            original(self, records)

        with monkeypatch.context() as patch:
            patch.setattr(journal.PredictionJournal, "append", append)
            outcome = call("predict", finished_run, "new", "--out", "table.csv")
        assert outcome.code == 130
        assert f"stopped after {chunks * SMALL_CHUNK} of {FILES} files; rerun the same command to resume" in outcome.err
        assert not Path("table.csv").exists()
        return Path("table.csv.part")

    return stop


def rows_of(path: str) -> list[dict[str, str]]:
    with Path(path).open(newline="", encoding="utf-8") as handle:
        return list(csv.DictReader(handle))


def test_killed_at_random_moments(finished_run: Path, new: Path) -> None:
    command = [sys.executable, "-c", SLOWED_DOWN, "predict", str(finished_run), "new", "--out"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    rng = random.Random(3)
    for _ in range(2):
        process = subprocess.Popen([*command, "killed.csv"], stderr=subprocess.DEVNULL, env=environment)
        part, before = Path("killed.csv.part"), time.monotonic()
        size = part.stat().st_size if part.exists() else 0
        while process.poll() is None and not (part.exists() and part.stat().st_size > size + 300):
            assert time.monotonic() - before < 120
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 0.2))
        process.kill()
        assert process.wait() == -9 and part.exists() and not Path("killed.csv").exists()
    for name in ("killed.csv", "calm.csv"):
        done = subprocess.run([*command, name], capture_output=True, text=True, env=environment, check=True)
        assert ("resuming after" in done.stderr) == (name == "killed.csv")
    assert Path("killed.csv").read_bytes() == Path("calm.csv").read_bytes()
    assert sorted(path.name for path in Path().iterdir()) == ["calm.csv", "killed.csv", "new"]


def test_cut_off_anywhere(finished_run: Path, stopped: Callable[[int], Path]) -> None:
    """Every kind of torn end, and a block that the disk has lost."""
    part = stopped(5)
    content, record = part.read_bytes(), RECORD.itemsize
    start = content.index(b"\n") + 1
    assert len(content) == start + 5 * SMALL_CHUNK * record
    succeed("predict", finished_run, "new", "--out", "calm.csv")
    calm = Path("calm.csv").read_bytes()
    ends = [0, 1, start - 1, start, start + 1, start + SMALL_CHUNK * record - 1, start + SMALL_CHUNK * record]
    torn = [content[:end] for end in (*ends, len(content) - 1, len(content))]
    lost = content[: start + 2 * SMALL_CHUNK * record] + bytes(3 * SMALL_CHUNK * record)
    for left in (*torn, lost):
        part.write_bytes(left)
        succeed("predict", finished_run, "new", "--out", "table.csv")
        assert Path("table.csv").read_bytes() == calm and not part.exists()
        Path("table.csv").unlink()


def test_only_the_rest_is_done(
    finished_run: Path, stopped: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped(10)
    counts: list[int] = []
    original = chunked.predict_chunk

    def predict_chunk(model: Model, chunk: DecodedChunk, count: int, batch_size: int | None) -> Records:
        counts.append(count)
        return original(model, chunk, count, batch_size)

    monkeypatch.setattr(chunked, "predict_chunk", predict_chunk)
    outcome = succeed("predict", finished_run, "new", "--out", "table.csv")
    assert sum(counts) == FILES - 10 * SMALL_CHUNK and "resuming after 80 of 110 files" in outcome.err


def test_a_partial_file_of_something_else_is_refused(
    refuses: Refuses, finished_run: Path, stopped: Callable[[int], Path]
) -> None:
    part = stopped(2)
    again = ("predict", finished_run, "new", "--out", "table.csv")
    refuses("predict", finished_run, "new/001.png", "--out", "table.csv", says=("or of other images", "delete it"))
    shutil.copytree(finished_run, "other")
    manifest = Path("other/manifest.json")
    manifest.write_text(manifest.read_text().replace('"net"', '"new": {}, "net"'))
    refuses("predict", "other", "new", "--out", "table.csv", says=("table.csv.part", "of another model"))
    with part.open("rb") as busy:
        fcntl.flock(busy, fcntl.LOCK_EX)
        refuses(*again, says=("Another command is writing table.csv.part",))
    for foreign in ("my notes\n", '{"format": "mine"}\n', "{}\n", "[1]\n", "x" * 10_000):
        part.write_text(foreign)
        refuses(*again, says=("table.csv.part is not a partial file", "move it away"))


@pytest.mark.parametrize("count", [1, SMALL_CHUNK - 1, SMALL_CHUNK, SMALL_CHUNK + 1, 2 * SMALL_CHUNK])
def test_ends_of_chunks(finished_run: Path, new: Path, small_chunks: None, count: int) -> None:
    files = sorted(new.iterdir())[:count]
    succeed("predict", finished_run, *files, "--out", "table.csv")
    assert [row["file"] for row in rows_of("table.csv")] == [str(file) for file in files]


def test_rows_are_what_the_model_says(finished_run: Path, new: Path, small_chunks: None) -> None:
    outcome = succeed("predict", finished_run, "new", "--out", "table.csv")
    assert outcome.err == "skipped new/050.png: not an image that Pillow can read\n"
    succeed("predict", finished_run, "new", "--out", "table.parquet")
    table, lines = pq.read_table("table.parquet").to_pylist(), rows_of("table.csv")
    assert succeed("predict", finished_run, "new").out.replace("\r\n", "\n") == Path("table.csv").read_text()
    model = load_model(finished_run)
    thresholds = model.manifest.review_thresholds
    for start in range(0, FILES, SMALL_CHUNK):
        chunk = table[start : start + SMALL_CHUNK]
        readable = [row for row in chunk if row["file"] != "new/050.png"]
        made = model.predict_pixels(read_images([row["file"] for row in readable], 8, 1)[0])
        assert [row["class"] for row in readable] == [model.class_names[c] for c in made.classes]
        assert [row["class_index"] for row in readable] == made.classes.tolist()
        for name in ("confidence", "margin", "outlier_score"):
            np.testing.assert_array_equal(np.float32([row[name] for row in readable]), getattr(made, name))
    names = ("class", "class_index", "confidence", "margin", "outlier_score")
    broken = {**dict.fromkeys(names), "review": "unreadable"}
    assert table[50] == {"file": "new/050.png", **broken}
    assert lines[50] == {"file": "new/050.png", **dict.fromkeys(broken, ""), "review": "unreadable"}
    for row, line in zip(table, lines, strict=True):
        if row["class"] is not None:
            assert line["file"] == row["file"] and line["review"] == (row["review"] or "")
            assert float(line["confidence"]) == pytest.approx(row["confidence"], abs=5.1e-5)
            expected = "outlier" if row["outlier_score"] > thresholds.outlier else None
            assert row["review"] == (
                expected or ("low-confidence" if row["confidence"] < thresholds.confidence else None)
            )
    unsure, outside = ([row["review"] for row in table].count(reason) for reason in ("low-confidence", "outlier"))
    reasons = ", ".join(f"{n} {reason}" for n, reason in ((unsure, "low-confidence"), (outside, "outlier")) if n)
    expected_out = f"110 files in table.csv; review: {reasons}{', ' if reasons else ''}1 unreadable\n"
    trusted = trusted_threshold(selective_accuracies(json.loads((finished_run / "summary.json").read_text())))
    if trusted is not None:  # the run is reliable above a threshold
        reached = sum(row["confidence"] is not None and row["confidence"] >= trusted.threshold for row in table)
        expected_out += describe_threshold(trusted, reached) + "\n"
    assert outcome.out == expected_out


def test_odd_names(finished_run: Path, here: Path) -> None:
    names = [b"a,b.png", b'c"d.png', b"e\nf.png", b"g\xffh.png", "ü.png".encode()]
    os.mkdir("odd")
    for seed, name in enumerate(names):
        picture(90, seed).save("one.png")
        os.rename(b"one.png", b"odd/" + name)
    succeed("predict", finished_run, "odd", "--out", "table.csv")
    succeed("predict", finished_run, "odd", "--out", "table.parquet")
    expected = sorted(["odd/a,b.png", 'odd/c"d.png', "odd/e\nf.png", "odd/g\\xffh.png", "odd/ü.png"])
    assert sorted(row["file"] for row in rows_of("table.csv")) == expected
    assert sorted(pq.read_table("table.parquet").column("file").to_pylist()) == expected


def test_other_kinds_of_table_are_refused(refuses: Refuses, finished_run: Path, new: Path) -> None:
    refuses("predict", finished_run, "new", "--out", "t.xlsx", says=("t.xlsx", "end --out in .csv or .parquet"))
