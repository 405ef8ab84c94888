"""unissl predict"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from unissl.errors import UserError

if TYPE_CHECKING:
    from unissl.evaluate.draft import Draft
    from unissl.evaluate.inference import Model
    from unissl.evaluate.stream import Records

SUFFIXES = ("", ".csv", ".parquet")


def predict(run: Path, images: list[Path], /, *, out: Path | None = None) -> None:
    """Classify image files with the model of a run folder, as many as there are; writes CSV or parquet.

    A command that was stopped or killed goes on where it was when it is given again.

    Example: unissl predict runs/first photos/ --out predictions.csv

    Parameters
    ----------
    run
        Run folder.
    images
        Image files, or folders of them.
    out
        File to write, .csv or .parquet; by default CSV to the terminal. An existing one is not overwritten.
    """
    from unissl.cli.machine import prepare_process

    if out is not None:
        if out.exists():
            raise UserError(f"{out} exists already; choose another --out.")
        if out.suffix.lower() not in SUFFIXES:
            raise UserError(f"{out} would have to be a table of type {out.suffix}; end --out in .csv or .parquet.")
    prepare_process()
    import torch

    from unissl.evaluate.draft import Draft
    from unissl.evaluate.inference import load_model
    from unissl.record import RunFolder

    folder = RunFolder(run)
    model = load_model(folder)
    files = [file for path in images for file in find_images(path)]
    if out is None:
        print_predictions(model, files)
        return
    with Draft(out, folder, files, torch.get_num_threads(), len(model.class_names)) as draft:
        torch.set_num_threads(draft.threads)
        try:
            fill(draft, model, files)
        except KeyboardInterrupt:
            print(
                f"stopped after {draft.done} of {len(files)} files; the same command goes on from there",
                file=sys.stderr,
            )
            raise
        write_table(draft, model, files)


def find_images(path: Path) -> list[str]:
    """The file itself, or every image below the folder."""
    from unissl.data import list_images

    if path.is_file():
        return [os.fspath(path)]
    if not path.is_dir():
        raise UserError(f"There is no file or folder {path}; check the path.")
    found = [os.path.join(path, name) for name in list_images(path)]
    if not found:
        raise UserError(f"The folder {path} holds no images; name one that does.")
    return found


def chunks_of(model: Model, files: list[str], done: int = 0) -> Iterator[Records]:
    """Records of the files after the first ``done``, with a bar; files that cannot be read are named on stderr."""
    from unissl.data.file_names import printable
    from unissl.data.progress import Progress
    from unissl.evaluate.stream import predict_chunks

    with Progress("predictions", len(files) - done) as progress:
        for records, reasons in predict_chunks(model, files, done):
            for position, reason in reasons.items():
                print(f"skipped {printable(files[done + position])}: {reason}", file=sys.stderr)
            yield records
            done += len(records)
            progress.advance(len(records))


def fill(draft: Draft, model: Model, files: list[str]) -> None:
    if draft.done:
        print(f"going on after {draft.done} of {len(files)} files that {draft.path} holds", file=sys.stderr)
    for records in chunks_of(model, files, draft.done):
        draft.append(records)


def print_predictions(model: Model, files: list[str]) -> None:
    from unissl.evaluate.table import count_looks, table_rows, write_csv
    from unissl.streams import printed_result

    unreadable = 0

    def counted() -> Iterator[Records]:
        nonlocal unreadable
        for records in chunks_of(model, files):
            unreadable += count_looks([records])["unreadable"]
            yield records

    try:
        with printed_result() as table:
            write_csv(table, table_rows(files, counted(), model.class_names))
    except UnicodeEncodeError as error:
        letters = error.object[error.start : error.end]
        raise UserError(
            f"Standard output is {error.encoding}, which lacks {letters!a}; set PYTHONIOENCODING=utf-8, or write "
            "a file with --out."
        ) from None
    refuse_if_nothing_was_read(unreadable, len(files))


def write_table(draft: Draft, model: Model, files: list[str]) -> None:
    """Turn the finished draft into the table, and say how many files to look at."""
    from unissl.evaluate.table import count_looks, table_rows, write_csv, write_parquet
    from unissl.record import write_atomically

    looks = count_looks(draft.blocks())
    if looks["unreadable"] == len(files):
        draft.remove()
    refuse_if_nothing_was_read(looks["unreadable"], len(files))

    def write(path: Path) -> None:
        rows = table_rows(files, draft.blocks(), model.class_names)
        if draft.out.suffix.lower() == ".parquet":
            write_parquet(path, rows)
        else:
            with path.open("w", encoding="utf-8", newline="") as handle:
                write_csv(handle, rows)

    write_atomically(draft.out, write)
    draft.remove()
    reasons = ", ".join(f"{count} {reason}" for reason, count in looks.items() if count)
    print(f"{len(files)} files in {draft.out}; look at: {reasons or 'none'}")


def refuse_if_nothing_was_read(unreadable: int, files: int) -> None:
    if unreadable == files:
        raise UserError("None of the images could be read; give files that Pillow can open.")
