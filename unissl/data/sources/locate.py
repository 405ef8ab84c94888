"""Find the folder of an unpacked data set; the error message names the download or the unpack command."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from unissl.errors import UserError


def data_folders(root: str | None, name: str) -> list[Path]:
    """Where a data set may be: ``root`` if it is named, otherwise ``$UNISSL_DATA`` and its subfolder ``name``."""
    data = os.environ.get("UNISSL_DATA")
    return [Path(root)] if root else [Path(data), Path(data) / name] if data else []


def not_found(name: str, root: str | None, where: str) -> UserError:
    """``where`` is a sentence that names the download."""
    searched = f" (there is nothing in {root})" if root else ""
    return UserError(f"The data set {name} was not found{searched}. {where}")


@dataclass(frozen=True)
class DatasetLocation:
    """A data set in a folder with certain files; ``inner`` is the name of that folder in the archive."""

    name: str
    needed: tuple[str, ...]
    """Files and folders that must exist."""
    archives: tuple[str, ...]
    """Archives that contain the folder; empty if the data set is published unpacked."""
    inner: str
    where: str
    """A sentence that names the download."""

    def find(self, root: str | None) -> Path | None:
        """The folder that has all needed files, or None."""
        return next((path for path in self._candidates(root) if not self._missing(path)), None)

    def require(self, root: str | None) -> Path:
        folder = self.find(root)
        if folder is None:
            raise self.missing(root)
        return folder

    def count_present(self, root: str | None) -> int:
        """The largest number of needed files that one candidate folder has."""
        return max((len(self.needed) - len(self._missing(path)) for path in self._candidates(root)), default=0)

    def _candidates(self, root: str | None) -> list[Path]:
        """Files directly in $UNISSL_DATA may belong to any data set, so that folder is no candidate."""
        folders = data_folders(root, self.name)
        return [path for folder in folders for path in (folder, folder / self.inner) if root or path != folders[0]]

    def _missing(self, folder: Path) -> list[str]:
        return [name for name in self.needed if not (folder / name).exists()]

    def missing(self, root: str | None) -> UserError:
        """One sentence with the fix: unpack an archive, add missing files, or download the data set."""
        folders = data_folders(root, self.name)
        for packed in [*folders, *(folder / archive for folder in folders for archive in self.archives)]:
            if packed.is_file():
                return self._packed(packed)
        for folder in self._candidates(root):
            missing = self._missing(folder)
            if len(missing) < len(self.needed):
                return UserError(f"{folder} lacks {' and '.join(missing)} of {self.name}. {self.where}")
        return not_found(self.name, root, self.where)

    def _packed(self, packed: Path) -> UserError:
        if not self.archives or packed.suffix not in (".zip", ".gz", ".tgz", ".tar"):
            return UserError(f"{packed} is a file; give the folder that holds {', '.join(self.needed)} with --root.")
        unpack = ["unzip", str(packed), "-d"] if packed.suffix == ".zip" else ["tar", "xf", str(packed), "-C"]
        return UserError(
            f"{packed} is packed, and {self.name} is read unpacked; run"
            f" {shlex.join([*unpack, str(packed.parent)])!r} and give {packed.parent} with --root."
        )
