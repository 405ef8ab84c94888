"""Run folders of a grid: local ones, or behind any URL that fsspec supports, and the state of the run in each.

Only files decide: ``summary.json`` is written last, so a run is done if and only if its summary has the hash of the
planned configuration.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from unissl.config import parse_toml
from unissl.errors import UserError
from unissl.run.config import build_config, config_hash
from unissl.utils.atomic import explain_disk_errors
from unissl.utils.bounded_io import parse_json, read_text

State = Literal["done", "interrupted", "failed", "missing"]
FAILED = "failed.json"
"""Written by a run that failed: the reason, and the cell that planned it."""
ORIGIN = "planned.json"
"""The cell of the experiment that first planned the run."""


class RunStorage(Protocol):
    """A folder that can be read."""

    def names(self) -> list[str]:
        """Its files and folders, without hidden ones; empty if the folder does not exist."""
        ...

    def read(self, name: str) -> str: ...


@dataclass(frozen=True)
class LocalStorage:
    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def names(self) -> list[str]:
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path} is a file, where a folder of runs is expected; move it away.")
        entries = self.path.iterdir() if self.path.is_dir() else ()
        return sorted(entry.name for entry in entries if not entry.name.startswith("."))

    def read(self, name: str) -> str:
        return read_text(self.path / name)


class StorageError(UserError):
    """A storage that cannot be reached, so that the state of its runs is unknown."""


@contextmanager
def open_url(url: str) -> Iterator[tuple[Any, str]]:
    """The file system of a URL and the path in it; errors of every kind of store become a :class:`StorageError`."""
    try:
        import fsspec

        files, path = fsspec.core.url_to_fs(url)
        yield files, str(path)
    except Exception as error:
        if isinstance(error, UserError):
            raise
        message = " ".join(str(error).split())[:200] or type(error).__name__
        raise StorageError(
            f"Cannot use {url} ({message}); give --out a folder or a URL that fsspec can reach."
        ) from error


@dataclass(frozen=True)
class RemoteStorage:
    url: str

    def __str__(self) -> str:
        return self.url

    def names(self) -> list[str]:
        with open_url(self.url) as (files, path):
            try:
                return sorted(Path(entry).name for entry in files.ls(path, detail=False))
            except FileNotFoundError:
                return []

    def read(self, name: str) -> str:
        with open_url(self.url) as (files, path):
            return str(files.cat_file(f"{path}/{name}").decode())

    def upload(self, folder: Path) -> None:
        """Copy a finished folder without its checkpoints; the summary last, so that a partial copy does not count."""
        files = [file.relative_to(folder) for file in sorted(folder.rglob("*")) if file.is_file()]
        files = [file for file in files if file.parts[0] != "checkpoints" and not file.name.startswith(".")]
        for file in sorted(files, key=lambda file: file.name == "summary.json"):
            self.upload_file(folder / file, file.as_posix())
        with open_url(self.url) as (store, path):
            if store.exists(f"{path}/{FAILED}"):
                store.rm_file(f"{path}/{FAILED}")

    def upload_file(self, file: Path, name: str | None = None) -> None:
        with open_url(self.url) as (files, path):
            target = f"{path}/{name or file.name}"
            files.makedirs(target.rpartition("/")[0], exist_ok=True)
            files.put_file(str(file), target)


def is_url(root: Path | str) -> bool:
    return "://" in str(root)


def scale_storage(root: Path | str, scale: str) -> LocalStorage | RemoteStorage:
    """The folder of all runs of a scale."""
    return RemoteStorage(f"{str(root).rstrip('/')}/{scale}") if is_url(root) else LocalStorage(Path(root) / scale)


def run_storage(root: Path | str, scale: str, name: str) -> LocalStorage | RemoteStorage:
    return scale_storage(root, f"{scale}/{name}")


@dataclass(frozen=True)
class RunStatus:
    """State of a run folder. A summary goes with "done", a reason with "failed"; ``foreign`` folders are not ours to
    write into."""

    state: State
    summary: dict[str, Any] | None = None
    reason: str | None = None
    foreign: bool = False


def read_status(storage: RunStorage, key: str) -> RunStatus:
    """State of the folder of the run with this configuration hash; anything unexpected is a reason, never an error."""
    try:
        names = storage.names()
        if not set(names) - {FAILED, ORIGIN}:
            return _failure(storage) if FAILED in names else RunStatus("missing")
        if "config.toml" not in names:
            return _foreign(f"{storage} holds files that are no run ({names[0]}); move it away")
        if "summary.json" in names:
            summary = parse_json(storage.read("summary.json"))
            if not isinstance(summary, dict) or summary.get("config") != key:
                return _foreign(f"{storage} holds a run of another configuration; move it away")
            return RunStatus("done", summary)
        if config_hash(build_config(parse_toml(storage.read("config.toml")))) != key:
            return _foreign(f"{storage} holds an interrupted run of another configuration; move it away")
        return _failure(storage) if FAILED in names else RunStatus("interrupted")
    except StorageError:
        raise
    except (ValueError, OSError, UserError) as error:
        message = " ".join(str(error).split())
        return _foreign(f"{storage} cannot be read as a run ({message}); delete it to run it again")


def _foreign(reason: str) -> RunStatus:
    return RunStatus("failed", reason=reason, foreign=True)


def _failure(storage: RunStorage) -> RunStatus:
    record = parse_json(storage.read(FAILED))
    return RunStatus("failed", reason=str(record.get("reason", "unknown") if isinstance(record, dict) else "unknown"))


def require_folder(root: Path | str) -> None:
    """Raise before anything runs if the folder of results cannot be created or reached."""
    if not is_url(root):
        with explain_disk_errors(Path(root)):
            Path(root).mkdir(parents=True, exist_ok=True)
    else:
        RemoteStorage(str(root)).names()
