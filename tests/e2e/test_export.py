"""``unissl export``: a file that predicts alone, and that is not written if it would predict something else."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from cli_helpers import Refuses, picture, succeed
from PIL import Image

STRANGER = """
import sys


class Forbidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "unissl"):
            raise ImportError(name + " is not to be used here")


sys.meta_path.insert(0, Forbidden())
import json

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
manifest = json.loads(session.get_modelmeta().custom_metadata_map["unissl"])
rules = manifest["preprocessing"]
pixels = []
for file in sys.argv[2:]:
    image = Image.open(file)
    if min(image.size) >= 6 * min(rules["size"]):
        image.draft(image.mode, (3 * min(rules["size"]),) * 2)
    image = ImageOps.exif_transpose(image)
    if image.mode == "I;16":
        image = Image.fromarray(((np.asarray(image).astype(np.uint32) * 255 + 32767) // 65535).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, rules["background"]), image).convert("RGB")
    image = image.convert(rules["mode"])
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    box = (left, top, left + side, top + side)
    height, width = rules["size"]
    image = image.resize((width, height), Image.Resampling[rules["resample"].upper()], box=box)
    pixels.append(np.asarray(image).reshape(height, width, manifest["channels"]))
probabilities, outlier = session.run(["probabilities", "outlier_score"], {"images": np.stack(pixels)})
best = probabilities.argmax(1)
print(json.dumps({
    "class": [manifest["class_names"][c] for c in best],
    "confidence": probabilities.max(1).tolist(),
    "outlier_score": outlier.tolist(),
}))
"""


def make_files(folder: Path) -> list[str]:
    """Files of several kinds, each with a trap in its preprocessing."""
    folder.mkdir()
    for seed in range(5):
        picture(40 * seed, seed).save(folder / f"plain{seed}.png")
    sideways = Image.Exif()
    sideways[0x0112] = 6
    picture(90, 7, side=40).crop((0, 0, 40, 17)).save(folder / "sideways.jpg", exif=sideways)
    picture(60, 8, side=200).save(folder / "large.jpg", quality=95)
    see_through = picture(20, 9).convert("RGBA")
    see_through.putalpha(Image.linear_gradient("L").resize(see_through.size))
    see_through.save(folder / "alpha.png")
    deep = np.random.default_rng(0).integers(0, 65536, (15, 11), dtype=np.uint16)
    Image.fromarray(deep).save(folder / "deep.png")
    return sorted(str(folder / file.name) for file in folder.iterdir())


@pytest.mark.parametrize("kind", ["grey and calibrated", "colour"])
def test_the_file_predicts_alone(kind: str, finished_run: Path, photo_run: tuple[Path, str], here: Path) -> None:
    grey = kind.startswith("grey")
    shutil.copytree(finished_run if grey else photo_run[0], "run")
    manifest = json.loads(Path("run/manifest.json").read_text())
    assert (manifest["calibration"]["temperature"] != 1) == grey and manifest["channels"] == (1 if grey else 3)
    printed = succeed("export", "run").out
    assert "run/model.onnx" in printed and "of torch on" in printed and "images of the run" in printed
    files = make_files(here / "new")
    succeed("predict", "run", *files, "--out", "ours.parquet")
    ours = pq.read_table("ours.parquet").to_pydict()
    command = [sys.executable, "-c", STRANGER, "run/model.onnx", *files]
    theirs = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert theirs["class"] == ours["class"]
    np.testing.assert_allclose(theirs["confidence"], ours["confidence"], atol=1e-4)
    np.testing.assert_allclose(theirs["outlier_score"], ours["outlier_score"], atol=1e-4)
    beside = json.loads(Path("run/model.onnx.json").read_text())
    assert beside["class_names"] == manifest["class_names"] and beside["calibration"] == manifest["calibration"]
    assert beside["input"]["shape"] == ["batch", 8, 8, manifest["channels"]]


def test_where_the_images_are_gone_noise_is_compared(photo_run: tuple[Path, str], here: Path) -> None:
    shutil.copytree(photo_run[0], "run")
    config = Path("run/config.toml")
    config.write_text(config.read_text().replace(str(photo_run[0].parent), "/nowhere"))
    assert "256 images of noise" in succeed("export", "run", "--format", "onnx", "--out", "there.onnx").out
    assert Path("there.onnx").exists() and Path("there.onnx.json").exists() and not Path("run/model.onnx").exists()


def test_refusals(refuses: Refuses, finished_run: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuses("export", finished_run, "--format", "onxn", says=("no export format 'onxn'", "Did you mean 'onnx'"))
    refuses("export", "nowhere", says=("nowhere holds no trained model",))
    for name in ("taken.onnx", "half.onnx.json"):
        Path(name).write_text("mine")
    refuses("export", finished_run, "--out", "taken.onnx", says=("taken.onnx exists already", "--out"))
    refuses("export", finished_run, "--out", "half.onnx", says=("half.onnx.json exists already", "--out"))
    with monkeypatch.context() as patch:
        found = importlib.util.find_spec
        patch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnxscript" else found(name))
        refuses("export", finished_run, "--out", "new.onnx", says=("pip install onnx onnxruntime onnxscript.",))


def test_a_file_that_disagrees_is_not_left_behind(
    refuses: Refuses, finished_run: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from unissl.inference.exporters import base

    exact = base.outlier_scores_of
    monkeypatch.setattr(base, "outlier_scores_of", lambda outputs: exact(outputs) + 2e-4)
    refuses("export", finished_run, "--out", "new.onnx", says=("differs from the trained one by 2.0e-04",))
