"""Where an unpacked data set lies, and what to say if it does not."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from unissl.data.dataset import data_folder
from unissl.errors import UserError


@dataclass(frozen=True)
class DatasetLocation:
    """A data set that is read from a folder with certain files: ``inner`` is how its archive calls that folder."""

    name: str
    needed: tuple[str, ...]
    """Files and folders that must be there."""
    archives: tuple[str, ...]
    """Packed files that people have in place of the folder; none if it is published unpacked."""
    inner: str
    where: str
    """A sentence on where to get it."""

    def find(self, root: str | None) -> Path | None:
        """The folder that holds all that is needed."""
        return next((place for place in self._candidates(root) if not self._missing(place)), None)

    def require(self, root: str | None) -> Path:
        found = self.find(root)
        if found is None:
            raise UserError(self.complaint(root))
        return found

    def how_much(self, root: str | None) -> int:
        """Of the needed files, as many as one place has."""
        return max((len(self.needed) - len(self._missing(place)) for place in self._candidates(root)), default=0)

    def _bases(self, root: str | None) -> list[Path]:
        data = data_folder()
        return [Path(root)] if root else [data, data / self.name] if data else []

    def _candidates(self, root: str | None) -> list[Path]:
        """What lies openly in $UNISSL_DATA may belong to anything, so that is not one."""
        bases = self._bases(root)
        return [place for base in bases for place in (base, base / self.inner) if place != data_folder()]

    def _missing(self, place: Path) -> Sequence[str]:
        return [name for name in self.needed if not (place / name).exists()]

    def complaint(self, root: str | None) -> str:
        """One sentence on what is nearest to being there."""
        if root is not None and Path(root).is_file():
            return self._unpack(Path(root))
        for place in self._bases(root):
            for packed in self.archives:
                if (place / packed).is_file():
                    return self._unpack(place / packed)
        for place in self._candidates(root):
            missing = self._missing(place)
            if len(missing) < len(self.needed):
                return f"{place} lacks {' and '.join(missing)} of {self.name}. {self.where}"
        looked = f" (there is nothing in {root})" if root else ""
        return f"The data set {self.name} was not found{looked}. {self.where}"

    def _unpack(self, packed: Path) -> str:
        if packed.suffix == ".zip":
            how = ["unzip", str(packed), "-d", str(packed.parent)]
        else:
            how = ["tar", "xf", str(packed), "-C", str(packed.parent)]
        if not self.archives or packed.suffix not in (".zip", ".gz", ".tgz", ".tar"):
            return f"{packed} is a file; name the folder that holds {', '.join(self.needed)} with --root."
        return (
            f"{packed} is packed, and {self.name} is read unpacked; run {shlex.join(how)!r} and name {packed.parent}"
            " with --root."
        )
