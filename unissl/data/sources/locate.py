"""Find the folder of an unpacked data set; the error message names the download or the unpack command."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from unissl.data.dataset import data_folder
from unissl.errors import UserError


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
            raise UserError(self.missing_message(root))
        return folder

    def count_present(self, root: str | None) -> int:
        """The largest number of needed files that one candidate folder has."""
        return max((len(self.needed) - len(self._missing(path)) for path in self._candidates(root)), default=0)

    def _bases(self, root: str | None) -> list[Path]:
        data = data_folder()
        return [Path(root)] if root else [data, data / self.name] if data else []

    def _candidates(self, root: str | None) -> list[Path]:
        """Files directly in $UNISSL_DATA may belong to any data set, so that folder is no candidate."""
        bases = self._bases(root)
        return [path for base in bases for path in (base, base / self.inner) if path != data_folder()]

    def _missing(self, folder: Path) -> Sequence[str]:
        return [name for name in self.needed if not (folder / name).exists()]

    def missing_message(self, root: str | None) -> str:
        """One sentence with the fix: unpack an archive, add missing files, or download the data set."""
        if root is not None and Path(root).is_file():
            return self._unpack_message(Path(root))
        for folder in self._bases(root):
            for archive in self.archives:
                if (folder / archive).is_file():
                    return self._unpack_message(folder / archive)
        for folder in self._candidates(root):
            missing = self._missing(folder)
            if len(missing) < len(self.needed):
                return f"{folder} lacks {' and '.join(missing)} of {self.name}. {self.where}"
        searched = f" (there is nothing in {root})" if root else ""
        return f"The data set {self.name} was not found{searched}. {self.where}"

    def _unpack_message(self, packed: Path) -> str:
        if packed.suffix == ".zip":
            command = ["unzip", str(packed), "-d", str(packed.parent)]
        else:
            command = ["tar", "xf", str(packed), "-C", str(packed.parent)]
        if not self.archives or packed.suffix not in (".zip", ".gz", ".tgz", ".tar"):
            return f"{packed} is a file; give the folder that holds {', '.join(self.needed)} with --root."
        return (
            f"{packed} is packed, and {self.name} is read unpacked; run {shlex.join(command)!r} and give"
            f" {packed.parent} with --root."
        )
