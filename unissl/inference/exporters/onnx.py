"""ONNX: a file for any ONNX runtime. The description is in the file's metadata too, under the key ``unissl``."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import torch

from unissl.inference.exporters.base import Exporter, Floats, Images, Runtime, export_program
from unissl.inference.model import Model

METADATA = "unissl"
OUTPUTS = ["probabilities", "outlier_score"]


class OnnxExporter(Exporter):
    format: ClassVar[str] = "onnx"
    suffix: ClassVar[str] = ".onnx"
    packages: ClassVar[tuple[str, ...]] = ("onnx", "onnxscript", "onnxruntime")
    install: ClassVar[str] = "onnx onnxruntime onnxscript"

    def encode(self, model: Model, description: Mapping[str, Any]) -> bytes:
        with _quiet():
            program, example = export_program(model)
            exported = torch.onnx.export(
                program, (example,), dynamo=True, input_names=["images"], output_names=OUTPUTS, verbose=False
            )
        assert exported is not None
        graph = exported.model_proto
        entry = graph.metadata_props.add()
        entry.key, entry.value = METADATA, json.dumps(description)
        return bytes(graph.SerializeToString())

    def load(self, content: bytes) -> Runtime:
        import onnxruntime

        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])

        def run(images: Images) -> tuple[Floats, Floats]:
            probs, outlier_score = session.run(OUTPUTS, {"images": images})
            return probs, outlier_score

        return run


@contextmanager
def _quiet() -> Iterator[None]:
    """torch's exporter warns about its own deprecations, and that torchvision, which is not used, is missing."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logger.setLevel(level)
