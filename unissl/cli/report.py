"""unissl report"""

from __future__ import annotations

from pathlib import Path

from unissl.errors import UserError
from unissl.utils.printing import echo

PAGE_SUFFIXES = ("", ".htm", ".html")


def report(run: Path, /, *, out: Path | None = None) -> None:
    """Write an HTML report: accuracy, calibration, images to review, recommendations.

    The page is a single file that works offline, on a phone and in print.

    Example: unissl report runs/first

    Args:
        run: Run folder.
        out: HTML file to write; by default report.html in the run folder. An earlier report is overwritten, any other
            file is not.
    """
    if out is not None and out.suffix.lower() not in PAGE_SUFFIXES:
        raise UserError(f"{out} would have to be a page of type {out.suffix}; end --out in .html.")
    from unissl.report.html import write_report
    from unissl.run_folder import RunFolder

    path, reason = write_report(RunFolder(run), out)
    if reason:
        echo(f"no images: {reason} Relative paths in config.toml start at the folder of the training.")
    echo(f"report: {path} ({path.stat().st_size / 1e6:.1f} MB)")
