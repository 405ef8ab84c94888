"""A batch cut into shards, on which a network computes shard by shard.

The sum of a gradient or of a BatchNorm's statistics over rows depends, in its last digits, on the order of addition and
on the kernel that the number of rows selects; training amplifies that. With a fixed number of shards V every kernel
sees the rows of one shard, and sums over shards are taken over all V in their order, so that no digit depends on the
number of processes that hold them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from unissl.distributed.gradients import copies
from unissl.errors import UserError
from unissl.types import Outputs


class Shards(Tensor):
    """Looks like one tensor to a network; what a function of torch does to it, it does to each of its pieces.

    ``own`` has, for each parameter of the network by its ``id``, the copies that the pieces use.
    """

    pieces: Sequence[Tensor]
    own: Mapping[int, Sequence[Tensor]]

    @classmethod
    def of(cls, pieces: Sequence[Tensor], own: Mapping[int, Sequence[Tensor]]) -> Self:
        made = torch.empty(0).as_subclass(cls)
        made.pieces, made.own = pieces, own
        return made

    def like(self, pieces: Sequence[Tensor]) -> Self:
        return self.of(pieces, self.own)

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        like = _first([args, list(named.values())])
        assert like is not None
        return _joined(
            [
                func(*_of_shard(args, i, like.own), **{name: _of_shard(v, i, like.own) for name, v in named.items()})
                for i in range(len(like.pieces))
            ],
            like,
        )


def _first(values: Any) -> Shards | None:
    if isinstance(values, Shards):
        return values
    inner = (_first(value) for value in values) if isinstance(values, list | tuple) else ()
    return next((found for found in inner if found is not None), None)


def _of_shard(value: Any, i: int, own: Mapping[int, Sequence[Tensor]]) -> Any:
    """An argument as shard number ``i`` sees it."""
    if isinstance(value, Shards):
        return value.pieces[i]
    if isinstance(value, list | tuple):
        return type(value)([_of_shard(entry, i, own) for entry in value])
    if isinstance(value, Tensor) and value.requires_grad:
        if id(value) not in own:  # its gradient would be that of some rows only
            raise UserError(
                "The network computes something from its parameters alone (such as a class token for every image), "
                "which cannot be done by shards; leave out machine.shards, or use another network."
            )
        return own[id(value)][i]
    return value


def _joined(results: Sequence[Any], like: Shards) -> Any:
    """What a function gives for all shards: tensors, several tensors, or something on which all shards agree."""
    first = results[0]
    if isinstance(first, Tensor):
        return like.like(results)
    if isinstance(first, list | tuple) and any(isinstance(entry, Tensor) for entry in first):
        return type(first)([_joined(entries, like) for entries in zip(*results, strict=True)])
    if any(other != first for other in results[1:]):
        raise UserError(
            "The network looks at the number of images, which is not the same in all shards; choose batch sizes that "
            "machine.shards divides, leave it out, or use another network."
        )
    return first


def pieces_of(x: Tensor) -> Sequence[Tensor]:
    return x.pieces if isinstance(x, Shards) else [x]


def by_shard(net: Callable[[Tensor], Outputs], pieces: Sequence[Tensor]) -> Outputs:
    """The network on shards of a batch. The gradients of its parameters are those of the shards of all processes."""
    trained = [parameter for parameter in net.parameters() if parameter.requires_grad]  # type: ignore[attr-defined]
    per_shard = copies(len(pieces), trained)
    return net(Shards.of(pieces, {id(parameter): own for parameter, own in zip(trained, per_shard, strict=True)}))


def refuse_if_inseparable(net: nn.Module, shape: Sequence[int]) -> None:
    """Find out on empty images, before anything is trained, whether a network can compute by shards."""
    probe, generator = copy.deepcopy(net).train(), torch.get_rng_state()
    pieces = [next(probe.parameters()).new_zeros(2, *shape)] * 2
    still = {id(parameter): [parameter.detach()] * 2 for parameter in probe.parameters()}
    try:
        logits = probe(Shards.of(pieces, still)).logits
    except UserError:
        raise
    except Exception:
        cut = False
    else:  # what still has a gradient comes from parameters that were used unseen, as in code of TorchScript
        cut = isinstance(logits, Shards) and not logits.requires_grad
    drawn = not torch.equal(generator, torch.get_rng_state())
    torch.set_rng_state(generator)
    if drawn:
        raise UserError(
            "The network draws random numbers (dropout), which would be others on each process; leave out "
            "machine.shards, or use another network."
        )
    if not cut:
        raise UserError("The network's code cannot be run by shards; leave out machine.shards, or use another network.")
