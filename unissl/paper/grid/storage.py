"""Where a run lives: a folder here, or one behind any URL that fsspec knows, and what its files say.

Only files decide: ``summary.json`` is written last, so a run is done exactly when it is there and is of the
configuration that was asked for.
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
from unissl.run_folder import explain_disk_errors
from unissl.utils.bounded_io import parse_json

State = Literal["done", "cut off", "failed", "missing"]
FAILED = "failed.json"
"""Written where a run came to grief: the reason, and what it was asked for by."""
ORIGIN = "planned.json"
"""The cell of the experiment that first asked for the run."""


class Place(Protocol):
    """A folder that can be read."""

    def names(self) -> list[str]:
        """What is in it, hidden files left out; nothing if it is not there."""
        ...

    def read(self, name: str) -> str: ...


@dataclass(frozen=True)
class LocalPlace:
    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def names(self) -> list[str]:
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path} is a file, where a folder of runs is expected; move it away.")
        entries = self.path.iterdir() if self.path.is_dir() else ()
        return sorted(entry.name for entry in entries if not entry.name.startswith("."))

    def read(self, name: str) -> str:
        return (self.path / name).read_text(encoding="utf-8")


class Unreachable(UserError):
    """A place for results that does not answer; nothing can be said about the runs there."""


@contextmanager
def reach(url: str) -> Iterator[tuple[Any, str]]:
    """The file system behind a URL and the path in it. What goes wrong there has many names, by the kind of store."""
    try:
        import fsspec

        files, path = fsspec.core.url_to_fs(url)
        yield files, str(path)
    except Exception as error:
        if isinstance(error, UserError):
            raise
        said = " ".join(str(error).split())[:200] or type(error).__name__
        raise Unreachable(f"Cannot use {url} ({said}); give --out a folder or a URL that fsspec can reach.") from error


@dataclass(frozen=True)
class RemotePlace:
    url: str

    def __str__(self) -> str:
        return self.url

    def names(self) -> list[str]:
        with reach(self.url) as (files, path):
            try:
                return sorted(Path(entry).name for entry in files.ls(path, detail=False))
            except FileNotFoundError:
                return []

    def read(self, name: str) -> str:
        with reach(self.url) as (files, path):
            return str(files.cat_file(f"{path}/{name}").decode())

    def receive(self, folder: Path) -> None:
        """Copy a finished folder up, without its checkpoints; its summary last, so that what was cut off on the way
        counts for nothing."""
        files = [file.relative_to(folder) for file in sorted(folder.rglob("*")) if file.is_file()]
        wanted = [file for file in files if file.parts[0] != "checkpoints" and not file.name.startswith(".")]
        for file in sorted(wanted, key=lambda file: file.name == "summary.json"):
            self.receive_file(folder / file, file.as_posix())
        with reach(self.url) as (store, path):
            if store.exists(f"{path}/{FAILED}"):
                store.rm_file(f"{path}/{FAILED}")

    def receive_file(self, file: Path, name: str | None = None) -> None:
        with reach(self.url) as (files, path):
            target = f"{path}/{name or file.name}"
            files.makedirs(target.rpartition("/")[0], exist_ok=True)
            files.put_file(str(file), target)


def is_url(root: Path | str) -> bool:
    return "://" in str(root)


def place_of(root: Path | str, scale: str, name: str) -> LocalPlace | RemotePlace:
    if is_url(root):
        return RemotePlace(f"{str(root).rstrip('/')}/{scale}/{name}")
    return LocalPlace(Path(root) / scale / name)


@dataclass(frozen=True)
class Finding:
    """The state of a folder; ``foreign`` where it is not ours to write into."""

    state: State
    summary: dict[str, Any] | None = None
    reason: str | None = None
    foreign: bool = False


def examine(place: Place, key: str) -> Finding:
    """What a folder says about the run with this key; anything unexpected is a reason, never an error."""
    try:
        names = place.names()
        if not set(names) - {FAILED, ORIGIN}:
            return _failure(place) if FAILED in names else Finding("missing")
        if "config.toml" not in names:
            return _foreign(f"{place} holds files that are no run ({names[0]}); move it away")
        if "summary.json" in names:
            summary = parse_json(place.read("summary.json"))
            if not isinstance(summary, dict) or summary.get("config") != key:
                return _foreign(f"{place} holds a run of another configuration; move it away")
            return Finding("done", summary)
        if config_hash(build_config(parse_toml(place.read("config.toml")))) != key:
            return _foreign(f"{place} holds a begun run of another configuration; move it away")
        return _failure(place) if FAILED in names else Finding("cut off")
    except Unreachable:
        raise
    except (ValueError, OSError, UserError) as error:
        said = " ".join(str(error).split())
        return _foreign(f"{place} cannot be read as a run ({said}); delete it to have it run again")


def _foreign(reason: str) -> Finding:
    return Finding("failed", reason=reason, foreign=True)


def _failure(place: Place) -> Finding:
    said = parse_json(place.read(FAILED))
    return Finding("failed", reason=str(said.get("reason", "unknown") if isinstance(said, dict) else "unknown"))


def require_folder(root: Path | str) -> None:
    """Refuse a place for results that cannot be made, before anything runs."""
    if not is_url(root):
        with explain_disk_errors(Path(root)):
            Path(root).mkdir(parents=True, exist_ok=True)
    else:
        RemotePlace(str(root)).names()
