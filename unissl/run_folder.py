"""The run folder: the only thing that passes between training and every other verb.

Every file name is here; docs/operations.md describes the files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unissl.distributed.group import current
from unissl.errors import UserError, shortened
from unissl.utils.atomic import explain_disk_errors, open_regular, require_real_folder, require_regular_file
from unissl.utils.bounded_io import parse_json, read_text, reject_many_values, reject_surrogates

WALL_CLOCK_FIELDS = frozenset({"seconds"})
"""Fields that differ between two runs of the same configuration."""
MAX_METRICS_BYTES = 64 << 20
"""Size of the metrics; a run writes some thousand lines."""


class RunFolder:
    """Paths and metrics of one run."""

    def __init__(self, path: Path | str) -> None:
        if not isinstance(path, str | os.PathLike) or "\0" in os.fspath(path):
            raise UserError(f"A run folder is given as {shortened(repr(path))}; give its path.")
        self.path = Path(path)
        self.config = self.path / "config.toml"
        self.split = self.path / "split.json"
        self.data_fingerprint = self.path / "data_fingerprint.json"
        self.metrics = self.path / "metrics.jsonl"
        self.checkpoints = self.path / "checkpoints"
        self.model = self.path / "model.safetensors"
        self.manifest = self.path / "manifest.json"
        self.predictions = self.path / "predictions.parquet"
        self.test_predictions = self.path / "test_predictions.parquet"
        self.cross_validation = self.path / "cross_validation.json"
        self.folds = self.path / "folds"  # refits of the cross-validation, until it is complete
        self.summary = self.path / "summary.json"
        self.plots = self.path / "plots"
        self.report = self.path / "report.html"

    @property
    def baseline(self) -> RunFolder:
        return self.inside("baseline")

    @property
    def holds_run(self) -> bool:
        return self.config.exists()

    @property
    def finished(self) -> bool:
        return self.summary.exists()

    def check_unused(self) -> None:
        """Raise if the folder holds anything: a run never overwrites files."""
        with explain_disk_errors(self.path):  # its name may be too long
            is_file = self.path.exists() and not self.path.is_dir()
            holds_files = self.path.is_dir() and any(not entry.name.startswith(".") for entry in self.path.iterdir())
        if is_file or holds_files:
            if self.holds_run:
                raise UserError(f"{self.path} already holds a run; choose another --out, or continue it with --resume.")
            raise UserError(f"{self.path} is {'a file' if is_file else 'not empty'}; choose another --out.")

    def create(self) -> None:
        with explain_disk_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)

    def inside(self, *names: str) -> RunFolder:
        """The folder of another run in this one."""
        return RunFolder(require_real_folder(self.path, *names))

    def check_links(self) -> None:
        """Raise if writing would be led elsewhere by a link: before hours of training, not after."""
        require_regular_file(self.metrics)
        for name in ("checkpoints", "plots", "folds", "baseline"):
            require_real_folder(self.path, name)

    def remove_partial_files(self) -> None:
        """Remove partial files of a killed process."""
        self.check_links()
        with explain_disk_errors(self.path):
            for folder in (self.path, self.checkpoints, self.plots):
                for draft in folder.glob(".*.draft"):
                    draft.unlink(missing_ok=True)

    def append_metrics(self, line: Mapping[str, Any]) -> None:
        if not current().is_main:
            return
        with explain_disk_errors(self.metrics), open_regular(self.metrics, "ab") as handle:
            handle.write(json.dumps(line).encode() + b"\n")

    def metrics_size(self) -> int:
        """Bytes of metrics that are safely on the disk."""
        if not self.metrics.exists():
            return 0
        with explain_disk_errors(self.metrics), open_regular(self.metrics, "rb") as handle:
            os.fsync(handle.fileno())
        return self.metrics.stat().st_size

    def cut_metrics(self, size: int) -> None:
        """Drop the lines that were written after the checkpoint that training continues from."""
        present = require_regular_file(self.metrics).stat().st_size if self.metrics.exists() else 0
        if present < size:
            raise UserError(f"{self.metrics} has lost lines since the checkpoint; restore it or train again.")
        if present > size:
            with explain_disk_errors(self.metrics), open_regular(self.metrics, "r+b") as handle:
                handle.truncate(size)

    def read_metrics(self) -> list[dict[str, Any]]:
        if not self.metrics.exists():
            return []
        try:
            text = read_text(self.metrics, MAX_METRICS_BYTES)
            reject_many_values(text)  # of all lines together
            lines = [parse_json(line) for line in text.split("\n") if line]
            reject_surrogates(lines)
            if not all(isinstance(line, dict) for line in lines):
                raise ValueError("a line is no object")
        except (ValueError, OSError):
            raise UserError(f"{self.metrics} is damaged; restore it or train again.") from None
        return lines
