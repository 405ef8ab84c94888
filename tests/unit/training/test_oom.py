"""Out of memory ends in a sentence that suggests smaller batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from unissl.batches import BatchConfig
from unissl.training.oom import OutOfMemory, memory_errors

HUGE = 1 << 60


def by_python() -> None:
    raise MemoryError


def by_numpy() -> None:
    np.empty(HUGE, dtype=np.uint8)


def by_torch() -> None:
    torch.empty(HUGE, dtype=torch.uint8)


def by_cuda() -> None:
    """As torch raises it on a GPU, which there is none of here."""
    raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")


def by_windows() -> None:
    raise RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 4096 bytes.")


@pytest.mark.parametrize("fail", [by_python, by_numpy, by_torch, by_cuda, by_windows])
def test_a_smaller_batch_is_named(fail: object) -> None:
    assert callable(fail)
    with pytest.raises(OutOfMemory) as caught, memory_errors(BatchConfig(labelled=64, unlabelled=448, evaluation=1)):
        fail()
    message = str(caught.value)
    assert "not enough memory for batches of 64 labelled and 448 unlabelled images" in message and "\n" not in message
    assert message.endswith("for example --set batch.labelled=32 --set batch.unlabelled=224.")


def test_where_batches_cannot_shrink_the_images_can() -> None:
    with (
        pytest.raises(OutOfMemory, match=r"smaller images \(--set data\.image_size=\.\.\.\)"),
        memory_errors(BatchConfig(labelled=1, unlabelled=1, evaluation=1)),
    ):
        by_python()


def test_other_errors_pass() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), memory_errors(BatchConfig()):
        torch.zeros(2, 3) @ torch.zeros(2, 3)
