"""Write requirements-hashed.txt: every pin of constraints.txt but torch, with the SHA-256 of all its published files.

    python tools/lock_hashes.py [--index https://pypi.org/simple]

Run it after a change of constraints.txt (`make hashes`) and commit both files. The hashes of all platforms and Python
versions are included. torch is left out, because its CPU and CUDA builds have the same version and other files.
"""

from __future__ import annotations

import argparse
import re
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYPI = "https://pypi.org/simple"
LINK = re.compile(r'href="[^"#]*?([^"/#]+)#sha256=([0-9a-f]{64})"')
APART = {"torch"}
HEAD = "# Written by tools/lock_hashes.py from constraints.txt; do not edit.\n"


def read_pins(text: str) -> dict[str, str]:
    """Name -> version, of lines ``name==version``."""
    lines = (line.split("#")[0].strip() for line in text.splitlines())
    return dict(line.split("==") for line in lines if line)  # type: ignore[misc]


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def file_version(name: str, file: str) -> str | None:
    """The version in the name of a wheel or source archive."""
    stem = re.sub(r"\.(whl|tar\.gz|zip|tar\.bz2)$", "", file)
    if stem == file:
        return None
    if file.endswith(".whl"):
        return stem.split("-")[1]
    return stem[len(name) + 1 :] if normalised(stem[: len(name)]) == normalised(name) else None


def published_hashes(index: str, name: str, version: str) -> list[str]:
    """SHA-256 of every file of a version, sorted."""
    request = urllib.request.Request(f"{index.rstrip('/')}/{normalised(name)}/", headers={"Accept": "text/html"})
    with urllib.request.urlopen(request, timeout=60) as response:
        files = LINK.findall(response.read().decode("utf-8"))
    hashes = {digest for file, digest in files if file_version(name, urllib.parse.unquote(file)) == version}
    if not hashes:
        raise SystemExit(f"{name} {version} has no files at {index}; correct constraints.txt.")
    return sorted(hashes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--index", default=PYPI, help="a package index with the simple API")
    index = parser.parse_args().index
    pins = read_pins((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    pins = {name: version for name, version in pins.items() if name not in APART}
    with ThreadPoolExecutor(8) as pool:
        hashes = list(pool.map(lambda pin: published_hashes(index, *pin), pins.items()))
    entries = [
        f"{name}=={version}" + "".join(f" \\\n    --hash=sha256:{digest}" for digest in digests) + "\n"
        for (name, version), digests in zip(pins.items(), hashes, strict=True)
    ]
    (ROOT / "requirements-hashed.txt").write_text(HEAD + "".join(entries), encoding="utf-8")
    print(f"{len(entries)} packages, {sum(map(len, hashes))} files")


if __name__ == "__main__":
    main()
