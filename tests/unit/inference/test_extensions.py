"""The code of docs/extend: a file in the folder is a calibrator or an exporter, and it works."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from unissl.evaluation import calibrators
from unissl.evaluation.calibration import calibrate, negative_log_likelihood
from unissl.inference import exporters
from unissl.inference.model import load_model

DOCS = Path(__file__).parents[3] / "docs" / "extend"


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, object], None]]:
    """Puts the Python block of a page into a package."""
    installed = []

    def put(page: str, package: object) -> None:
        folder = tmp_path / page
        folder.mkdir()
        (code,) = re.findall(r"```python\n(.*?)```", (DOCS / f"{page}.md").read_text(encoding="utf-8"), re.DOTALL)
        (folder / "example.py").write_text(code)
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])  # type: ignore[attr-defined]
        installed.append(f"{package.__name__}.example")  # type: ignore[attr-defined]
        importlib.invalidate_caches()
        calibrators.all_calibrators.cache_clear()
        exporters.all_exporters.cache_clear()

    yield put
    for name in installed:
        sys.modules.pop(name, None)
        vars(sys.modules[name.removesuffix(".example")]).pop("example", None)
    calibrators.all_calibrators.cache_clear()
    exporters.all_exporters.cache_clear()


def test_a_calibrator_is_one_file(install: Callable[[str, object], None], make_run: Callable[..., Path]) -> None:
    """Labels that are wrong at random call for a floor under the probabilities, not for a temperature."""
    install("calibrator", calibrators)
    rng = np.random.default_rng(0)
    classes = rng.integers(0, 3, 2000)
    probs = np.full((2000, 3), 1e-6)
    probs[np.arange(2000), classes] = 1 - 2e-6
    probs[:500] = rng.dirichlet((8.0, 8.0, 8.0), 500)
    labels = np.where(rng.random(2000) < 0.1, rng.integers(0, 3, 2000), classes)
    labels[:500] = [rng.choice(3, p=row) for row in probs[:500]]
    calibration = calibrate(probs, labels)
    assert calibration.calibrator.kind == "uniform-mixture" and calibration.nll_after < calibration.nll
    assert negative_log_likelihood(calibration.calibrator.apply_to_probs(probs), labels) < calibration.nll
    entry = calibration.calibrator.to_manifest()
    assert calibrators.read_calibrator(entry) == calibration.calibrator
    assert calibration.to_summary()["kind"] == "uniform-mixture"
    images = rng.integers(0, 256, (5, 12, 12, 3), dtype=np.uint8)
    plain = load_model(make_run()).predict_pixels(images)
    calibrated = load_model(make_run(calibration=entry)).predict_proba(images)
    np.testing.assert_allclose(calibrated, plain.calibrated(calibration.calibrator).probs, atol=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_an_exporter_is_one_file(install: Callable[[str, object], None], make_run: Callable[..., Path]) -> None:
    install("exporter", exporters)
    run = make_run(calibration={"kind": "temperature", "temperature": 2.0})
    exported = exporters.export_model(str(run), format="torch")
    assert exported.path == run / "model.pt2" and exported.path.exists()
    assert exported.description == run / "model.pt2.json" and exported.description.exists()
    assert exported.difference < 1e-4 and exported.compared_on == "images of noise"


def test_formats() -> None:
    assert list(exporters.all_exporters()) == ["onnx"] and list(calibrators.all_calibrators()) == ["temperature"]
