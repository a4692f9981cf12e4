"""A learner's state as a tree of tensors, and functions that copy, save, check and move it.

A tree is a tensor, or a dataclass, a tuple or a dictionary of trees. None is an empty tree.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from hotloop.base.transfer import to_host
from hotloop.errors import CheckpointError, ConfigError
from hotloop.types import Array

Tree = TypeVar("Tree")


def tensors(tree: Any, *, skip_shared: bool = False) -> dict[str, Tensor]:
    """Return the tensors of a tree by dotted names such as `adam.mean`, in order.

    Args:
        tree: the tree.
        skip_shared: whether to skip parts with a `__deepcopy__`, such as a replay buffer of several
            GiB. Copies of a tree share these parts, so repeating an update must not change what it
            writes to them.
    """
    return dict(_walk(tree, "", skip_shared))


def map_tensors(tree: Tree, function: Callable[[Tensor], Tensor]) -> Tree:
    """Return a tree of the same kind, with `function` applied to each tensor."""

    def rebuild(value: Any) -> Any:
        if isinstance(value, Tensor):
            return function(value)
        parts = {name: rebuild(part) for name, part in _parts(value)}
        if isinstance(value, dict) or value is None:
            return parts or value
        if dataclasses.is_dataclass(value) or hasattr(value, "_fields"):
            return type(value)(**parts)
        return tuple(parts.values())

    return rebuild(tree)


def stack_trees(trees: Sequence[Tree]) -> Tree:
    """Return one tree of stacked tensors, (K, …), from K trees of the same kind."""
    columns = zip(*(tensors(tree).values() for tree in trees), strict=True)
    stacks = iter([torch.stack(column) for column in columns])
    return map_tensors(trees[0], lambda _: next(stacks))


def to_device(tree: Tree, device: torch.device) -> Tree:
    """Return the tree with its tensors on a device. Tensors on that device are not copied."""
    return map_tensors(tree, lambda x: x.to(device))


def clone(tree: Tree) -> Tree:
    """Return a copy on the same device."""
    return map_tensors(tree, lambda x: x.detach().clone())


def to_arrays(tree: Any, prefix: str = "state.") -> dict[str, Array]:
    """Return host arrays by name, for a checkpoint. On the CPU they share the tensors' memory."""
    return {f"{prefix}{name}": to_host(x) for name, x in tensors(tree).items()}


def load_arrays(
    tree: Any,
    arrays: Mapping[str, Array],
    prefix: str = "state.",
    *,
    advice: str = "resume with the same algorithm and network, or start a new training",
) -> None:
    """Write the arrays of `to_arrays` into the tensors of a tree.

    A field with a default may be missing, since an older version did not have it. `advice` ends the
    message of an error.

    Raises:
        CheckpointError: an array is missing, has another shape, or has NaN or infinity.
    """
    optional_names: set[str] = set()
    if dataclasses.is_dataclass(tree):
        optional_names = {x.name for x in dataclasses.fields(tree) if x.default is None}
    for name, tensor in tensors(tree).items():
        array = arrays.get(f"{prefix}{name}")
        if array is None and name in optional_names:
            continue
        if array is None or array.shape != tuple(tensor.shape):
            problem = "it is missing" if array is None else f"got {array.shape}"
            raise CheckpointError(
                f"the checkpoint's `{prefix}{name}` must have shape {tuple(tensor.shape)}, "
                f"{problem}: {advice}"
            )
        source = torch.from_numpy(array)
        # A user's state may begin with infinity, such as a running minimum.
        has_lost = source.is_floating_point() and (
            source.isnan().any() or (tensor.isfinite().all() and not source.isfinite().all())
        )
        if has_lost:
            raise CheckpointError(
                f"the checkpoint's `{prefix}{name}` has NaN or infinity: choose another checkpoint"
            )
        tensor.copy_(source)


def non_finite(tree: Any) -> list[str]:
    """Return the names of the tensors that contain NaN or infinity, with one synchronization."""
    floats = {name: x for name, x in tensors(tree).items() if x.is_floating_point()}
    if not floats:
        return []
    are_finite = torch.stack([x.isfinite().all() for x in floats.values()]).tolist()
    return [name for name, is_finite in zip(floats, are_finite, strict=True) if not is_finite]


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if value is None:
        return
    if isinstance(value, dict):
        yield from value.items()
    elif hasattr(value, "_fields"):
        yield from zip(value._fields, value, strict=True)
    elif isinstance(value, tuple):
        yield from ((str(k), part) for k, part in enumerate(value))
    elif dataclasses.is_dataclass(value):
        yield from ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
    else:
        raise ConfigError(
            f"a state must contain tensors, or dataclasses, tuples and dictionaries of them, got a "
            f"{type(value).__name__}: move other values to the configuration or the networks"
        )


def _walk(value: Any, name: str, skip_shared: bool) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
    elif not (skip_shared and hasattr(value, "__deepcopy__")):
        for part, child in _parts(value):
            yield from _walk(child, f"{name}.{part}" if name else part, skip_shared)
