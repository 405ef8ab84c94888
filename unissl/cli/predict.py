"""unissl predict"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from unissl.errors import UserError
from unissl.utils.printing import echo

if TYPE_CHECKING:
    from unissl.evaluation.selective import SelectiveAccuracy
    from unissl.inference.image_source import ImageSource
    from unissl.inference.journal import PredictionJournal
    from unissl.inference.model import Model
    from unissl.inference.prediction_table import Records
    from unissl.run_folder import RunFolder

TABLE_SUFFIXES = ("", ".csv", ".parquet")


def predict(run: Path, images: list[Path], /, *, out: Path | None = None) -> None:
    """Classify image files with a trained model and write CSV or Parquet.

    If interrupted, rerun the same command to resume.

    Example: unissl predict runs/first photos/ --out predictions.csv

    Args:
        run: Run folder.
        images: Image files, or folders of them.
        out: File to write, .csv or .parquet; by default CSV to the terminal. An existing one is not overwritten.
    """
    if out is not None:
        if out.exists():
            raise UserError(f"{out} exists already; choose another --out.")
        if out.suffix.lower() not in TABLE_SUFFIXES:
            raise UserError(f"{out} would have to be a table of type {out.suffix}; end --out in .csv or .parquet.")
    import torch

    from unissl.inference.image_source import open_images
    from unissl.inference.journal import PredictionJournal
    from unissl.inference.model import load_model
    from unissl.run_folder import RunFolder
    from unissl.training.signals import stop_hint

    folder = RunFolder(run)
    if out is None:
        with stop_hint("predictions are kept only in a file", "repeat the command with --out predictions.csv"):
            print_predictions(load_model(folder), open_images(images))
        return
    model, source = load_model(folder), open_images(images)
    files = source.files or []
    with PredictionJournal(out, folder, files, torch.get_num_threads(), len(model.class_names)) as journal:
        torch.set_num_threads(journal.threads)
        if journal.done:
            echo(f"resuming after {journal.done} of {len(files)} files in {journal.path}", err=True)
        try:
            for records in predict_with_progress(model, source, journal.done):
                journal.append(records)
        except KeyboardInterrupt as stop:
            stop.args = (f"stopped after {journal.done} of {len(files)} files; rerun the same command to resume",)
            raise
        write_predictions(journal, folder, model, files)


def predict_with_progress(model: Model, source: ImageSource, done: int = 0) -> Iterator[Records]:
    """Records of the files after the first ``done``, with a progress bar; unreadable files are named on stderr."""
    from unissl.inference.model import predict_chunks
    from unissl.utils.file_names import printable
    from unissl.utils.progress import Progress

    files = source.files or []
    with Progress("predictions", len(files) - done) as progress:
        for records, reasons in predict_chunks(model, source, done):
            for position, reason in reasons.items():
                echo(f"skipped {printable(files[done + position])}: {reason}", err=True)
            yield records
            done += len(records)
            progress.advance(len(records))


def print_predictions(model: Model, source: ImageSource) -> None:
    """Predictions as CSV on standard output."""
    from unissl.inference.prediction_table import count_reviews, file_tables, write_csv
    from unissl.utils.streams import printed_result

    unreadable = 0

    def counted() -> Iterator[Records]:
        nonlocal unreadable
        for records in predict_with_progress(model, source):
            unreadable += count_reviews([records])["unreadable"]
            yield records

    try:
        with printed_result() as handle:
            tables = file_tables(source.files or [], counted(), model.class_names)
            write_csv(handle, tables, escape_controls=True)
    except UnicodeEncodeError as error:
        letters = error.object[error.start : error.end]
        raise UserError(
            f"Standard output is {error.encoding}, which lacks {letters!a}; set PYTHONIOENCODING=utf-8, or write "
            "a file with --out."
        ) from None
    check_any_read(unreadable, len(source))


def write_predictions(journal: PredictionJournal, folder: RunFolder, model: Model, files: list[str]) -> None:
    """Write the table from the complete journal, and print the result."""
    from unissl.evaluation.selective import trusted_threshold
    from unissl.inference.prediction_table import confident, count_reviews, file_tables, write_table
    from unissl.run.schema import Summary, require, selective_accuracies
    from unissl.utils.atomic import read_json

    reviews, row = count_reviews(journal.blocks()), None
    if folder.finished:  # a folder may have the model alone
        summary = require(Summary, read_json(folder.summary), folder.summary)
        row = trusted_threshold(selective_accuracies(summary))
    if reviews["unreadable"] == len(files):
        journal.remove()
    check_any_read(reviews["unreadable"], len(files))
    write_table(journal.out, file_tables(files, journal.blocks(), model.class_names), overwrite=False)
    reached = 0 if row is None else sum(int(confident(block, row.threshold).sum()) for block in journal.blocks())
    journal.remove()
    reasons = ", ".join(f"{count} {reason}" for reason, count in reviews.items() if count)
    echo(f"{len(files)} files in {journal.out}; review: {reasons or 'none'}")
    if row is not None:
        echo(describe_threshold(row, reached))


def describe_threshold(row: SelectiveAccuracy, reached: int) -> str:
    """How many files reach a confidence, and how often such predictions were correct when the model was evaluated."""
    assert row.accuracy is not None
    accuracy, low, high = (f"{100 * value:.0f}" for value in row.accuracy)
    return (
        f"confidence of at least {row.threshold}: {reached} files; of such predictions {accuracy} % were correct in "
        f"the evaluation of the run (95 % interval {low} to {high} %, {row.images} images; see report.html for others)"
    )


def check_any_read(unreadable: int, files: int) -> None:
    if unreadable == files:
        raise UserError("None of the images could be read; give files that Pillow can open.")
