"""Photo runs of the command, with distillation, folds and baseline: killed at any moment, and on several processes.

    python tests/stress/kill_photos.py kills --kills 100 --out FOLDER
    python tests/stress/kill_photos.py processes --runs 30 --out FOLDER

``kills`` trains once undisturbed. Then it kills a run with SIGKILL, resumes it and compares every file with the
undisturbed run, byte for byte but for wall-clock times. The moments are spread evenly over the time of the undisturbed
run, so that they fall into all phases: the start, training, folds, distillation, results, baseline and report.
``processes`` runs the command on 2 and on 4 processes and counts exit codes.

Each result is a line of FOLDER/kills.jsonl or FOLDER/processes.jsonl; the same command, given again, does what is left.
The photos are 200 of Caltech-101 in $UNISSL_DATA/caltech101. All runs start with the cache of the undisturbed run.
``--steps 20`` makes runs shorter than the default.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from unissl.run_folder import WALL_CLOCK_FIELDS

CLASSES = (1, 3, 5, 12, 19)
PHOTOS, LABELS = 40, 6
"""Per class."""
GOLDEN = (5**0.5 - 1) / 2
"""Multiples of it, modulo 1, are spread evenly however many there are."""
SECONDS = re.compile(rb"\d+(\.\d+)? (s|min|minutes|seconds)\b")
"""Durations in the report."""


def make_photos(source: Path, folder: Path) -> None:
    """A folder of photos, and labels for some of them."""
    if (folder / "labels.csv").exists():
        return
    (folder / "photos").mkdir(parents=True, exist_ok=True)
    counts: Counter[int] = Counter()
    labels = []
    for batch in pq.ParquetFile(source).iter_batches(256):
        for image, label in zip(batch["image"].to_pylist(), batch["label"].to_pylist(), strict=True):
            if label not in CLASSES or counts[label] == PHOTOS:
                continue
            name = f"{label}-{counts[label]}.jpg"
            (folder / "photos" / name).write_bytes(image["bytes"])
            if counts[label] < LABELS:
                labels.append((name, f"class {label}"))
            counts[label] += 1
    with (folder / "labels.csv").open("w", newline="") as handle:
        csv.writer(handle).writerows([("file", "label"), *labels])


class Stress:
    """Runs of the command in ``folder``, all on the same photos."""

    def __init__(self, folder: Path, steps: int | None) -> None:
        self.folder, self.steps = folder.resolve(), steps
        settings = [] if steps is None else ["--steps", str(steps)]
        self.train = ["-m", "unissl", "train", "--images", "photos", "--labels", "labels.csv", "--threads", "1"]
        self.train += settings
        self.resume = ["-m", "unissl", "train", "--resume", "--threads", "1"]
        self.calm = self.folder / "calm"

    def command(self, out: Path, *, resume: bool = False) -> list[str]:
        return [sys.executable, *(self.resume if resume else self.train), "--out", out.name, "--quiet"]

    def environment(self, cache: str) -> dict[str, str]:
        return {**os.environ, "OMP_NUM_THREADS": "1", "UNISSL_CACHE": str(self.folder / cache)}

    def calm_seconds(self) -> float:
        """Train undisturbed, once with an empty cache and once with its copy; the seconds of the second run."""
        path = self.folder / "calm.json"
        if not path.exists():
            for name in ("calm", "first", "cache"):
                shutil.rmtree(self.folder / name, ignore_errors=True)
            for name in ("first", "calm"):
                started = time.monotonic()
                self.finish(self.folder / name, "cache")
            path.write_text(json.dumps({"seconds": time.monotonic() - started, "steps": self.steps}))
            shutil.rmtree(self.folder / "first")
        calm = json.loads(path.read_text())
        if calm["steps"] != self.steps:
            raise SystemExit(f"{self.folder} was begun with --steps {calm['steps']}; give that, or another --out.")
        return float(calm["seconds"])

    def finish(self, out: Path, cache: str, *, resume: bool = False) -> None:
        command = self.command(out, resume=resume)
        done = subprocess.run(command, cwd=self.folder, env=self.environment(cache), capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} ended with code {done.returncode}:\n{done.stderr}")

    def kill(self, number: int) -> dict[str, Any]:
        """Kill the run after a share of its time, resume it, and compare its files."""
        share, out, cache = (number * GOLDEN) % 1, self.folder / f"killed-{number}", f"cache-{number}"
        started, seconds, killed = time.monotonic(), self.calm_seconds(), False
        while not killed:  # on a machine that was busier before, a run may be over sooner than the moment: again
            for left in (out, self.folder / cache):
                shutil.rmtree(left, ignore_errors=True)
            shutil.copytree(self.folder / "cache", self.folder / cache)
            begun = time.monotonic()
            killed = self.killed_after(share * seconds, out, cache)
            seconds = time.monotonic() - begun
        phase = phase_of(out)
        self.finish(out, cache, resume=(out / "config.toml").exists())
        different = differences(self.calm, out)
        if not different:
            shutil.rmtree(out)
        shutil.rmtree(self.folder / cache)
        facts = {"number": number, "share": round(share, 4), "killed": killed, "phase": phase, "different": different}
        return {**facts, "seconds": round(time.monotonic() - started, 1)}

    def killed_after(self, seconds: float, out: Path, cache: str) -> bool:
        """Start the run and kill it; whether it was still at work."""
        process = subprocess.Popen(
            self.command(out),
            cwd=self.folder,
            env=self.environment(cache),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
        return process.wait() < 0

    def on_processes(self, size: int, number: int) -> dict[str, Any]:
        """The command on several processes; the exit code of torchrun, which is 1 if a process aborts."""
        out, started = self.folder / f"processes-{size}-{number}", time.monotonic()
        shutil.rmtree(out, ignore_errors=True)
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={size}", "--monitor-interval=0.1"]
        command = [sys.executable, *torchrun, *self.command(out)[1:]]
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment("cache"), capture_output=True, text=True, errors="replace"
        )
        finished = (out / "summary.json").exists() and (out / "report.html").exists()
        shutil.rmtree(out, ignore_errors=True)
        line = {"processes": size, "number": number, "code": done.returncode, "finished": finished}
        line["seconds"] = round(time.monotonic() - started, 1)
        return line if done.returncode == 0 else {**line, "stderr": done.stderr[-2000:]}


def phase_of(run: Path) -> str:
    """What a run was doing when it was killed, by its files."""
    if not (run / "config.toml").exists():
        return "start"
    prefix, folder = ("baseline: ", run / "baseline") if (run / "summary.json").exists() else ("", run)
    if prefix and (folder / "summary.json").exists():
        return "end" if (run / "report.html").exists() else "report"
    if (folder / "cross_validation.json").exists():
        return f"{prefix}distillation and results"
    return f"{prefix}folds" if (folder / "folds").exists() else f"{prefix}training"


def differences(one: Path, other: Path) -> list[str]:
    """Names of files, hidden ones too, that differ or that only one of the folders has."""
    first, second = content_of(one), content_of(other)
    return sorted(name for name in first.keys() | second.keys() if first.get(name) != second.get(name))


def content_of(folder: Path) -> dict[str, str]:
    """Hash of the content of each file, without wall-clock times."""
    paths = [path for path in folder.rglob("*") if not path.is_symlink() and path.is_file()]
    hashes = {str(path.relative_to(folder)): hashlib.sha256(without_clock(path)).hexdigest() for path in paths}
    return hashes | {str(path.relative_to(folder)): "other" for path in folder.rglob("*") if path not in paths}


def without_clock(path: Path) -> bytes:
    if path.suffix in (".json", ".jsonl"):
        lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        return json.dumps([without_fields(json.loads(line)) for line in lines]).encode()
    content = path.read_bytes()
    if path.parent.name == "checkpoints":
        return checkpoint_without_clock(content)
    return SECONDS.sub(b"", content) if path.suffix == ".html" else content


def checkpoint_without_clock(content: bytes) -> bytes:
    """A safetensors file without its times, the length of the metrics, in which times are printed, and their digest."""
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    facts = without_fields(json.loads(header["__metadata__"].pop("unissl")))
    header["facts"] = {key: value for key, value in facts.items() if key not in ("metrics_size", "digest")}
    return json.dumps(header, sort_keys=True).encode() + content[end:]


def without_fields(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_fields(inner) for key, inner in value.items() if key not in WALL_CLOCK_FIELDS}
    return [without_fields(inner) for inner in value] if isinstance(value, list) else value


def missing(path: Path, keys: Sequence[tuple[int, ...]], names: tuple[str, ...]) -> Iterator[tuple[int, ...]]:
    """Keys that have no line in the file of results yet."""
    done = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    present = {tuple(line[name] for name in names) for line in done}
    return (key for key in keys if key not in present)


def append(path: Path, line: dict[str, Any]) -> None:
    with path.open("a") as handle:
        handle.write(json.dumps(line) + "\n")
    print(json.dumps(line), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["kills", "processes"])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kills", type=int, default=100, help="number of the last kill")
    parser.add_argument("--first", type=int, default=1, help="number of the first, to share the kills among folders")
    parser.add_argument("--runs", type=int, default=30, help="runs for each number of processes")
    parser.add_argument("--sizes", type=int, nargs="+", default=[2, 4], help="numbers of processes")
    parser.add_argument("--steps", type=int, help="training steps of every training; by default those of the command")
    arguments = parser.parse_args()
    source = Path(os.environ.get("UNISSL_DATA", ".")) / "caltech101" / "images.parquet"
    if not source.exists():
        print(f"skipped: {source} is missing; set $UNISSL_DATA to the folder of caltech101/images.parquet.")
        return 0
    make_photos(source, arguments.out)
    stress = Stress(arguments.out, arguments.steps)
    print(f"a run takes {stress.calm_seconds():.0f} s undisturbed", flush=True)
    path = arguments.out / f"{arguments.what}.jsonl"
    if arguments.what == "kills":
        for (number,) in missing(path, [(n,) for n in range(arguments.first, arguments.kills + 1)], ("number",)):
            append(path, stress.kill(number))
    else:
        runs = [(size, number) for size in arguments.sizes for number in range(1, arguments.runs + 1)]
        for size, number in missing(path, runs, ("processes", "number")):
            append(path, stress.on_processes(size, number))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return conclude_kills(lines) if arguments.what == "kills" else conclude_processes(lines)


def conclude_kills(lines: list[dict[str, Any]]) -> int:
    different = [line for line in lines if line["different"]]
    phases = Counter(line["phase"] for line in lines if line["killed"])
    seconds = sum(line["seconds"] for line in lines) / len(lines)
    print(f"{sum(phases.values())} kills ({dict(phases)}), {seconds:.0f} s per kill and resume")
    print(f"{len(lines) - len(different)} of {len(lines)} ends are byte-equal")
    return bool(different)


def conclude_processes(lines: list[dict[str, Any]]) -> int:
    for size in sorted({line["processes"] for line in lines}):
        chosen = [line for line in lines if line["processes"] == size]
        codes = Counter(line["code"] for line in chosen)
        print(f"{size} processes: {len(chosen)} runs, exit codes {dict(codes)}")
    return any(line["code"] or not line["finished"] for line in lines)


if __name__ == "__main__":
    sys.exit(main())
