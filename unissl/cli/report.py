"""unissl report"""

from __future__ import annotations

from pathlib import Path

from unissl.cli.printing import echo
from unissl.errors import UserError

PAGE_SUFFIXES = ("", ".htm", ".html")


def report(run: Path, /, *, out: Path | None = None) -> None:
    """Write an HTML report: accuracy, calibration, images to review, recommendations.

    The page is a single file that works offline, on a phone and in print.

    Example: unissl report runs/first

    Parameters
    ----------
    run
        Run folder.
    out
        HTML file to write; by default report.html in the run folder. An earlier report is overwritten, any other file
        is not.
    """
    from unissl.cli.process import prepare_process

    if out is not None and out.suffix.lower() not in PAGE_SUFFIXES:
        raise UserError(f"{out} would have to be a page of type {out.suffix}; end --out in .html.")
    prepare_process()
    from unissl.report.html import write_report
    from unissl.run_folder import RunFolder

    written = write_report(RunFolder(run), out)
    if written.no_images_reason:
        echo(
            f"no images: {written.no_images_reason} Relative paths in config.toml start at the folder of the training."
        )
    echo(f"report: {written.path} ({written.path.stat().st_size / 1e6:.1f} MB)")
