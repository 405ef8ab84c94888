"""MD5 checksums of data sets as their authors publish them.

Files whose format can hide code or crash a reader (pickle, Matlab, tar) are parsed only if their checksum is the
published one, so the standard readers suffice. The digests are those that the loaders of torchvision check
(torchvision/datasets of pytorch/vision). There are none for the unpacked images of Food-101 and for the arrays of the
downsampled ImageNet.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from unissl.errors import UserError
from unissl.utils.bounded_io import open_file

MD5 = {
    "cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a",
    "cifar-10-batches-py/data_batch_1": "c99cafc152244af753f735de768cd75f",
    "cifar-10-batches-py/data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "cifar-10-batches-py/data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "cifar-10-batches-py/data_batch_4": "634d18415352ddfa80567beed471001a",
    "cifar-10-batches-py/data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "cifar-10-batches-py/test_batch": "40351d587109b95175f43aff81a1287e",
    "cifar-10-batches-py/batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
    "cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85",
    "cifar-100-python/train": "16019d7e3df5f24257cddd939b257f8d",
    "cifar-100-python/test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
    "cifar-100-python/meta": "7973b15100ade9c7d40fb424638fde48",
    "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
    "extra_32x32.mat": "a93ce644f1a588dc4d68dda5feec44a7",
    "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
    "train_X.bin": "918c2871b30a85fa023e0c44e0bee87f",
    "train_y.bin": "5a34089d4802c674881badbb80307741",
    "test_X.bin": "7f263ba9f9e0b06b93213547f721ac82",
    "test_y.bin": "36f9794fa4beb8a2c72628de14fa638e",
    "unlabeled_X.bin": "5242ba1fed5e4be9e1e742405eb56ca4",
}


def require_checksum(path: Path, name: str) -> None:
    """Refuse ``path`` unless it is byte for byte the published file ``name`` (a key of ``MD5``)."""
    with open_file(path) as file:
        digest = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if digest != MD5[name]:
        raise UserError(
            f"{path} is not the published {name} (its MD5 is {digest}, the published one {MD5[name]});"
            " download it again."
        )


def report_partial(dataset: str, unit: str, count: int, published: int) -> None:
    """Print a note if a data set is incomplete, since results on it are not comparable with published ones."""
    if count != published:
        print(f"Note: {dataset} is published with {published} {unit}, found {count}.", file=sys.stderr, flush=True)
