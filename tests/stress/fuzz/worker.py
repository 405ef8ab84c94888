"""The process in which one reader reads its cases."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from case import Reader
from readers import make
from sandbox import MEMORY, SECONDS, Forbidden, Guard, TooSlow, limit_memory, peak_megabytes

LONGEST = 1500
"""Characters of a sentence."""
CANARY = "canary_of_the_fuzzer.py"
"""A module that hostile files name; it must never be imported."""
MOST_SAVED = 20


class Tally:
    """Counts, written to a file that the parent reads, so that a crash loses nothing."""

    def __init__(self, path: Path, start: int) -> None:
        self.next = start
        self.counts: Counter[str] = Counter()
        self.slowest, self.floor = 0.0, peak_megabytes()
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT)

    def note(self, outcome: str, seconds: float) -> None:
        self.counts[outcome] += 1
        self.slowest = max(self.slowest, seconds)
        self.next += 1

    def write(self) -> None:
        """Before each case: it may be the last."""
        grown = peak_megabytes() - self.floor
        state = {**self.counts, "next": self.next, "slowest": self.slowest, "megabytes": grown}
        os.pwrite(self.file, json.dumps(state).ljust(500).encode(), 0)


def prepare(name: str, home: Path) -> Reader:
    """The reader, with all that it imports imported: it reads its valid files once."""
    os.chdir(home)
    os.environ["UNISSL_CACHE"] = str(home / "cache")
    os.environ["TMPDIR"] = str(home)
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(home))
    (home / CANARY).write_text("raise SystemExit('the canary was imported')\n")
    warnings.simplefilter("ignore")
    reader = make(name, home)
    for content in reader.files:
        reader.read(content)
    return reader


def judge(reader: Reader, guard: Guard, content: bytes) -> tuple[str, str]:
    """read, refused or failed; with what is wrong in the last case."""
    from unissl.errors import UserError

    try:
        with guard.watching(SECONDS):
            reader.read(content)
        outcome, story = "read", ""
    except UserError as error:
        message = str(error)
        good = 0 < len(message) <= LONGEST and "\n" not in message and "Traceback" not in message
        outcome, story = ("refused", message) if good else ("failed", f"not a sentence: {message[:3000]!r}")
    except (Exception, Forbidden, TooSlow, SystemExit):
        outcome, story = "failed", traceback.format_exc()
    if guard.seen:
        outcome, story = "failed", f"{guard.seen}\n{story}"
    return outcome, story


def work(name: str, home: Path, start: int, count: int, seed: int, out: Path, atheris: bool) -> None:
    reader = prepare(name, home)
    guard = Guard(home)
    limit_memory(MEMORY)
    tally = Tally(home.with_name(home.name + ".state"), start)

    def one(content: bytes) -> None:
        number = tally.next
        tally.write()
        begun = time.process_time()
        outcome, story = judge(reader, guard, content)
        tally.note(outcome, time.process_time() - begun)
        if outcome == "failed" and tally.counts["failed"] <= MOST_SAVED:
            (out / f"{name}-{seed}-{number}.bin").write_bytes(content)
            (out / f"{name}-{seed}-{number}.txt").write_text(story)

    if atheris:
        guided(reader, one, tally, count, seed)
    else:
        for number in range(start, count):
            one(reader.case(seed, name, number))
    tally.write()


def guided(reader: Reader, one: Any, tally: Tally, count: int, seed: int) -> None:
    """Cases that atheris chooses by the branches they reach in our own code."""
    import atheris

    corpus = Path("corpus")
    corpus.mkdir(exist_ok=True)
    for number, content in enumerate(reader.files):
        (corpus / str(number)).write_bytes(content)
    atheris.Setup([sys.argv[0], f"-runs={count}", f"-seed={seed + 1}", "-rss_limit_mb=0", str(corpus)], one)
    try:
        atheris.Fuzz()
    finally:
        tally.write()
