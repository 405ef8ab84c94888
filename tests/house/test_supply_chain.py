"""Every pinned package but torch has published hashes, and the installation asks for them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from lock_hashes import file_version, read_pins  # noqa: E402


def test_every_pin_has_hashes() -> None:
    pins = read_pins((ROOT / "constraints.txt").read_text())
    entries = re.findall(
        r"^(\S+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$",
        (ROOT / "requirements-hashed.txt").read_text(),
        re.MULTILINE,
    )
    assert {name: version for name, version, _ in entries} == {n: v for n, v in pins.items() if n != "torch"}
    numpy = next(hashes for name, _, hashes in entries if name == "numpy")
    assert numpy.count("sha256") > 20  # wheels of all platforms, not only of this one


def test_the_installation_checks_them() -> None:
    text = (ROOT / "Makefile").read_text()
    assert "--require-hashes --no-deps --requirement requirements-hashed.txt" in text
    assert "://" not in (ROOT / "requirements-hashed.txt").read_text()


def test_versions_of_files() -> None:
    assert file_version("ml_dtypes", "ml_dtypes-0.6.0-cp311-cp311-win_amd64.whl") == "0.6.0"
    assert file_version("import-linter", "import_linter-2.16.tar.gz") == "2.16"
    assert file_version("x", "x-1.0.exe") is None
