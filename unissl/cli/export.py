"""unissl export"""

from __future__ import annotations

from pathlib import Path

from unissl.utils.printing import echo


def export(run: Path, /, *, format: str = "onnx", out: Path | None = None) -> None:
    """Write a trained model as one file for other programs, checked against the original.

    The file takes raw pixels and returns probabilities. How to decode and resize an image is in the JSON file next to
    it, and in the file itself.

    Example: unissl export runs/first

    Args:
        run: Run folder.
        format: File format; onnx needs the packages onnx, onnxruntime and onnxscript.
        out: File to write; an existing one is not overwritten. By default model.onnx in the run folder.
    """
    from unissl.inference.exporters import export_model

    exported = export_model(run, out, format)
    megabytes = exported.path.stat().st_size / 1e6
    agreement = f"within {exported.difference:.0e} of torch on {exported.images} {exported.compared_on}"
    echo(f"{exported.path} ({megabytes:.1f} MB): {agreement}")
    echo(f"input, output and preprocessing: {exported.description}")
