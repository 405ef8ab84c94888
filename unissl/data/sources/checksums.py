"""Files as their makers publish them: what a download must be, byte for byte.

A file of exactly the published length is taken for the published file, and then its MD5 must be the published one.
A file of another length is one of the same layout with fewer images, which has its uses, and is read as such; that it
is not the whole set is said once, when it is prepared. What was cut off is noticed by the readers of each layout.

The digests are those that the loaders of torchvision check (torchvision/datasets of pytorch/vision). None of them
exists for the unpacked images of Food-101 and for the arrays of the downsampled ImageNet.
"""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass
from pathlib import Path

from unissl.errors import UserError

STL10_IMAGE = 3 * 96 * 96


@dataclass(frozen=True)
class Published:
    length: int
    """In bytes."""
    md5: str


FILES = {
    "cifar-10-python.tar.gz": Published(170_498_071, "c58f30108f718f92721af3b95e74349a"),
    "cifar-100-python.tar.gz": Published(169_001_437, "eb9058c3a382ffc7106e4002c42a8d85"),
    "train_32x32.mat": Published(182_040_794, "e26dedcc434d2e4c54c9b2d4a06d8373"),
    "extra_32x32.mat": Published(1_329_278_602, "a93ce644f1a588dc4d68dda5feec44a7"),
    "test_32x32.mat": Published(64_275_384, "eb5a983be6a315427106f1b164d9cef3"),
    "train_X.bin": Published(5_000 * STL10_IMAGE, "918c2871b30a85fa023e0c44e0bee87f"),
    "train_y.bin": Published(5_000, "5a34089d4802c674881badbb80307741"),
    "test_X.bin": Published(8_000 * STL10_IMAGE, "7f263ba9f9e0b06b93213547f721ac82"),
    "test_y.bin": Published(8_000, "36f9794fa4beb8a2c72628de14fa638e"),
    "unlabeled_X.bin": Published(100_000 * STL10_IMAGE, "5242ba1fed5e4be9e1e742405eb56ca4"),
}


def verify_checksum(path: Path) -> None:
    """A file with name and length of a published one must be that one."""
    published = FILES.get(path.name)
    if published is None or path.stat().st_size != published.length:
        return
    with path.open("rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if found != published.md5:
        raise UserError(
            f"{path} is damaged: its MD5 is {found}, and that of the published file {published.md5}; get it anew."
        )


def announce_part(name: str, what: str, found: int, published: int) -> None:
    """Say it where a data set is not the whole one, since its numbers are then nobody else's."""
    if found != published:
        print(f"Note: {name} is published with {published} {what}, and here are {found}.", file=sys.stderr, flush=True)
