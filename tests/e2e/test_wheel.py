"""The wheel, installed without the repository, runs every verb that a user starts with."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).parents[2]
SHORT = ["--net", "small", "--steps", "4", "--set", "data.image_size=16", "--set", "train.cv_folds=0", "--quiet"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the sources, so that the repository stays as it is."""
    top = tmp_path_factory.mktemp("wheel")
    source = top / "source"
    source.mkdir()
    for name in ("unissl", "unissl_kernels", "unissl_paper"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "LICENSE", "docs/package.md"):
        (source / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(top)]
    subprocess.run([*command, str(source)], check=True, timeout=300)
    return next(top.glob("unissl-*.whl"))


def test_the_wheel_holds_the_packages_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {
        "unissl",
        "unissl_kernels",
        "unissl_paper",
        wheel.name.removesuffix("-py3-none-any.whl") + ".dist-info",
    }
    for needed in ("unissl/py.typed", "unissl/report/page.html.jinja", "unissl/run/pipeline.py", "unissl/cli/train.py"):
        assert needed in names
    assert not [name for name in names if "bench" in name or ("test_" in Path(name).name and "test_images" not in name)]


def test_verbs_run_without_the_repository(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    rng = np.random.default_rng(0)
    for number in range(12):
        name = ("dark", "light", "unlabelled")[number % 3]
        (tmp_path / "photos" / name).mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 100, (20, 20, 3)) + 120 * (number % 2)
        Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "photos" / name / f"{number}.png")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {"PYTHONPATH": str(site), "UNISSL_CACHE": str(tmp_path / "cache")}

    def unissl(*words: str) -> str:
        command = [sys.executable, "-P", "-m", "unissl", *words]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = "import unissl; print(unissl.__file__)"
    found = subprocess.run([sys.executable, "-P", "-c", where], env=environment, capture_output=True, text=True)
    assert found.stdout.startswith(str(site))  # not the repository
    unissl("demo", "--steps", "2", "--out", "demo")
    unissl("train", "--images", "photos", "--out", "run", *SHORT)
    unissl("predict", "run", "photos", "--out", "predictions.csv")
    unissl("report", "run", "--out", "page.html")
    unissl("export", "run", "--out", "model.onnx")
    assert "table1" in unissl("paper", "list")
    for name in ("demo/summary.json", "run/report.html", "predictions.csv", "page.html", "model.onnx"):
        assert (tmp_path / name).stat().st_size > 0, name
