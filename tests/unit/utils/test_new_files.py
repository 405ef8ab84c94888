"""Files that are written only where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from unissl.errors import UserError
from unissl.utils.atomic import write_atomically


@pytest.mark.parametrize("links", [True, False])
def test_a_file_that_appears_meanwhile_is_kept(links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*paths: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    if not links:
        monkeypatch.setattr("os.link", no_links)
    path = tmp_path / "predictions.csv"

    def write(draft: Path) -> None:
        draft.write_text("ours")
        path.write_text("theirs")

    with pytest.raises(UserError, match="has appeared meanwhile and is kept; move it elsewhere"):
        write_atomically(path, write, overwrite=False)
    assert path.read_text() == "theirs" and [entry.name for entry in tmp_path.iterdir()] == ["predictions.csv"]
    path.unlink()
    write_atomically(path, lambda draft: draft.write_text("ours") and None, overwrite=False)
    assert path.read_text() == "ours" and [entry.name for entry in tmp_path.iterdir()] == ["predictions.csv"]
