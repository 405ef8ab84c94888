"""(e) Time of ``unissl --help`` against an import of torch, and images per second of an evaluation."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from suite.cases import MEAN, STD, random_images
from suite.measure import Result, Row, seconds_of
from suite.plain_net import PlainNet
from suite.plain_views import to_tensor
from suite.setup import Setup
from suite.worker import repeat
from unissl.augment import AugmentConfig
from unissl.augment.image_views import ImageViews
from unissl.evaluation.predictions import predict_rows
from unissl.nets import build, channels_last

HELP = ("-m", "unissl", "--help")
BARE = ("-c", "pass")


@dataclass(frozen=True)
class Command:
    """A turn starts Python with some arguments and waits for its end."""

    arguments: tuple[str, ...]

    def run(self, turn: Callable[..., None]) -> None:
        command = [sys.executable, *self.arguments]
        repeat(turn, lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))


@dataclass(frozen=True)
class Evaluation:
    """A turn predicts the classes of ``count`` images."""

    net: str
    count: int
    plain: bool = False

    def run(self, turn: Callable[..., None]) -> None:
        images = random_images(self.count, 32)
        repeat(turn, self._plain_call(images) if self.plain else self._our_call(images))

    def _our_call(self, images: npt.NDArray[np.uint8]) -> Callable[[], object]:
        net = channels_last(build(self.net, 10)).eval()
        return lambda: predict_rows(net, ImageViews(images, AugmentConfig(), MEAN, STD, torch.device("cpu")))

    def _plain_call(self, images: npt.NDArray[np.uint8]) -> Callable[[], object]:
        net = PlainNet(self.net, 10).eval()
        mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))

        @torch.no_grad()
        def call() -> list[int]:
            classes: list[int] = []
            for start in range(0, len(images), 256):
                batch = [to_tensor(Image.fromarray(pixels), mean, std) for pixels in images[start : start + 256]]
                classes += net(torch.stack(batch))[0].argmax(1).tolist()
            return classes

        return call


def startup(setup: Setup) -> Result:
    library = "numpy" if setup.quick else "torch"
    commands = {"help": HELP, "library": ("-c", f"import {library}"), "bare": BARE}
    sides = {name: setup.plain(Command(arguments)) for name, arguments in commands.items()}
    reports = setup.measure("startup: --help", sides)
    bare = median(seconds_of(reports["bare"]))
    helped, imported = seconds_of(reports["help"]), seconds_of(reports["library"])
    rows = [Row(f"unissl --help; plain: import {library}", helped, imported, {"bare Python s": bare})]

    net, count = ("wrn-10-1", 64) if setup.quick else ("wrn-28-2", 2048)
    evaluations = {"ours": setup.ours(Evaluation(net, count)), "plain": setup.plain(Evaluation(net, count, plain=True))}
    reports = setup.measure(f"evaluation: {net}", evaluations)
    ours, plain = seconds_of(reports["ours"]), seconds_of(reports["plain"])
    facts = {"images/s": count / median(ours), "plain images/s": count / median(plain)}
    rows.append(Row(f"evaluation, {net}, 32 px, {count} images", ours, plain, facts))
    return Result("startup", "Start-up and evaluation", rows)
