"""Weights: shipped models with their manifests, checkpoints, backbones from files, and published .pth files."""

from __future__ import annotations

import io
import json
import struct
import sys
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import torch
from case import Make, Reader
from mutate import EXTREMES, hostile_tree, mutated
from safetensors.torch import save
from torch import Tensor

from readers.places import lay
from readers.run_folder import MANIFEST, lay_run
from unissl.inference.manifest import Manifest
from unissl.inference.model import build_from_manifest, load_model, load_weights
from unissl.nets import build
from unissl.nets.external import load as load_foreign
from unissl.nets.registry import create_network

DTYPES = (torch.float16, torch.float64, torch.int32, torch.uint8, torch.bool, torch.bfloat16, torch.complex64)


def header_and_rest(content: bytes) -> tuple[dict[str, Any], bytes]:
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def with_header(header: object, rest: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + rest


def hostile_safetensors(
    rng: Random, whole: bytes, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None
) -> bytes:
    """Headers that lie about offsets, shapes and types; and intact files of other tensors."""
    header, rest = header_and_rest(whole)
    what = rng.randrange(4)
    if what == 0:
        return with_header(hostile_tree(rng, header), rest)
    if what == 1:
        return struct.pack("<Q", rng.choice(EXTREMES) % 2**64) + whole[8:]
    changed = dict(tensors)
    name = rng.choice(list(changed))
    value = changed.pop(name)
    if what == 2:
        others = (
            value.to(rng.choice(DTYPES)),
            value.reshape(-1),
            value.reshape(-1)[:0],
            value.new_full(value.shape, 7),
        )
        chosen = rng.choice(others)
        if chosen.is_floating_point() and chosen.numel() and rng.random() < 0.3:
            chosen = chosen.clone()
            chosen.view(-1)[0] = rng.choice((float("nan"), float("inf"), -1e30))
        changed[rng.choice((name, name, name + "x", "", "x" * 3000))] = chosen.contiguous()
    return save(changed, metadata)


def model_files(place: Path) -> tuple[Any, dict[str, Tensor], bytes]:
    folder = lay_run(place)
    torch.manual_seed(0)
    net = build("small", 3, 1)
    module = build_from_manifest(Manifest.model_validate(MANIFEST))
    tensors = {name: net.state_dict()[name].contiguous() for name in module.state_dict()}
    content = save(tensors)
    folder.model.write_bytes(content)
    return folder, tensors, content


def model_reader(home: Path) -> Reader:
    folder, tensors, content = model_files(home / "run")

    def read(damaged: bytes) -> None:
        folder.model.write_bytes(damaged)
        module = build_from_manifest(Manifest.model_validate(MANIFEST))
        load_weights(module, folder)

    return Reader([content], read, lambda rng: hostile_safetensors(rng, content, tensors))


def manifest_reader(home: Path) -> Reader:
    folder, _, _ = model_files(home / "run")
    images = torch.zeros(1, 8, 8, 1, dtype=torch.uint8).numpy()

    def read(damaged: bytes) -> None:
        folder.manifest.write_bytes(damaged)
        model = load_model(folder)
        if model.size == (8, 8) and model.channels == 1:
            model.predict_pixels(images)

    def hostile(rng: Random) -> bytes:
        tree = dict(MANIFEST)
        if rng.random() < 0.3:
            names = ("sage", "flexmatch", "cpg", "cgmatch", "meta-expert", "ssb", "scomatch", "calimatch")
            tree["method"] = {
                "name": rng.choice(names),
                rng.choice(("proj_dim", "queue", "steps", "x")): rng.choice((1, 10**12, -1)),
            }
        if rng.random() < 0.1:
            tree |= {
                "net": rng.choice(("os:abort", "canary_of_the_fuzzer:make", "hf:x", "small@x.safetensors", "timm:x"))
            }
            tree["frozen"] = rng.random() < 0.5
        return json.dumps(hostile_tree(rng, tree)).encode()

    return Reader([folder.manifest.read_bytes()], read, hostile, text=True)


def checkpoint_reader(home: Path) -> Reader:
    """Also with a digest that is right for what the file holds: then only its meaning can be wrong."""
    from unissl.methods.labels_only import LabelsOnlyConfig
    from unissl.training import checkpoint

    sys.path.insert(0, str(Path(__file__).parents[3] / "contract"))
    from method_cases import make_split, make_state

    config, split = LabelsOnlyConfig(), make_split(3)
    state = make_state(config, split, net="small")
    loss = state.learner.net(torch.randn(4, 1, 8, 8)).logits.sum()
    loss.backward()
    state.optimizer.step()
    state.step = 1
    path = checkpoint.save(home / "checkpoints", state, "hash", 17)
    whole = path.read_bytes()
    tensors = checkpoint._tensors(state)
    meta = json.loads(header_and_rest(whole)[0]["__metadata__"]["unissl"])

    def read(damaged: bytes) -> None:
        path.write_bytes(damaged)
        checkpoint.restore(path, state, "hash")

    def hostile(rng: Random) -> bytes:
        if rng.random() < 0.3:
            return hostile_safetensors(rng, whole, tensors, {"unissl": json.dumps(meta)})
        changed: Any = hostile_tree(rng, {key: value for key, value in meta.items() if key != "digest"})
        others = dict(tensors)
        for _ in range(rng.randrange(3)):
            name = rng.choice(list(others))
            value = others.pop(name)
            if rng.random() < 0.8:
                new = rng.choice(
                    (name, name + "x", "optimizer.99999.momentum_buffer", "optimizer.x.y", "rng.torch", "ema.", "x")
                )
                others[new] = rng.choice(
                    (value, value.reshape(-1)[:1].clone(), value.to(torch.float64), torch.zeros(3))
                ).contiguous()
        if isinstance(changed, dict):
            with suppress(RuntimeError, UnicodeEncodeError):
                changed["digest"] = checkpoint._digest(changed, others)
        return save(others, {"unissl": json.dumps(changed)})

    return Reader([whole], read, hostile, share=0.6)


def backbone_reader(home: Path) -> Reader:
    """``small@FILE.safetensors``: weights of a network of ours from anywhere, with a manifest beside them."""
    torch.manual_seed(0)
    tensors = {name: value.contiguous() for name, value in create_network("small", 3, 3, 0.1).state_dict().items()}
    content = save(tensors)
    path = home / "weights" / "w.safetensors"
    lay(home / "weights", {"w.safetensors": content, "manifest.json": json.dumps(MANIFEST).encode()})

    def read(damaged: bytes) -> None:
        path.write_bytes(damaged)
        load_foreign(f"small@{path}")

    return Reader([content], read, lambda rng: hostile_safetensors(rng, content, tensors))


def backbone_manifest_reader(home: Path) -> Reader:
    """The manifest beside such weights, which says what images they expect."""
    tensors = {name: value.contiguous() for name, value in create_network("small", 3, 3, 0.1).state_dict().items()}
    path = home / "weights" / "w.safetensors"
    good = {"mean": [0.5] * 3, "std": [0.25] * 3, "height": 8}
    lay(home / "weights", {"w.safetensors": save(tensors)})

    def read(damaged: bytes) -> None:
        (path.parent / "manifest.json").write_bytes(damaged)
        found = load_foreign(f"small@{path}")
        assert len(found.mean) == len(found.std) == 3 and min(found.std) > 0

    return Reader(
        [json.dumps(good).encode()], read, lambda rng: json.dumps(hostile_tree(rng, good)).encode(), text=True
    )


def published_reader(home: Path) -> Reader:
    """The .pth file of an installed package: nothing but the very file that was published is given to torch."""
    from unissl.nets.backbones.base import PackagedWeights

    package = "weights_for_the_fuzzer"
    memory = io.BytesIO()
    torch.save({"a": torch.zeros(3)}, memory)
    content = memory.getvalue()
    place = lay(home / package, {"__init__.py": b"", "w.pth": content})
    import hashlib

    digest = hashlib.sha256(content).hexdigest()
    weights = PackagedWeights(package, "1", "w.pth", digest)

    def read(damaged: bytes) -> None:
        (place / "w.pth").write_bytes(damaged)
        PackagedWeights.read.cache_clear()
        weights.read("fuzzed")

    return Reader([content], read, lambda rng: mutated(rng, [content]))


READERS: dict[str, Make] = {
    "model-safetensors": model_reader,
    "manifest-json": manifest_reader,
    "checkpoint": checkpoint_reader,
    "backbone-safetensors": backbone_reader,
    "backbone-manifest": backbone_manifest_reader,
    "published-pth": published_reader,
}
