"""Batches of transitions, joined from fragments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hotloop.errors import ConfigError
from hotloop.ops.shares import equal_shares
from hotloop.types import Array, Fragment


def to_batch(
    fragments: Sequence[Fragment], fields: Sequence[Mapping[str, Any]], rng: np.random.Generator
) -> dict[str, Any]:
    """Return the transitions of fragments as one batch, without the resets of environments.

    Random valid rows of the same fragment replace rows that are not transitions (`valid` is False).
    So all batches have the same size, and the workers have equal shares of them.

    Args:
        fragments: Fragments of T steps of N environments each. T may differ.
        fields: Training data of each fragment by name, (T, N, …).
        rng: Generator, used only for rows that are not valid.

    Returns:
        The fields, each (Σ T·N, …).

    Raises:
        ConfigError: No row is valid.
    """
    flat = {
        name: _join([arrays[name].reshape(-1, *arrays[name].shape[2:]) for arrays in fields])
        for name in fields[0]
    }
    if all(fragment.all_valid for fragment in fragments):
        return flat
    valid = _join([fragment.valid.reshape(-1) for fragment in fragments])
    if not valid.any():
        raise _no_transition_error()
    index = np.arange(len(valid))
    start = 0
    for fragment in fragments:
        fragment_index = index[start : start + fragment.valid.size]
        start += len(fragment_index)
        is_valid = fragment.valid.reshape(-1)
        if not is_valid.all():
            rows = fragment_index[is_valid] if is_valid.any() else np.flatnonzero(valid)
            fragment_index[~is_valid] = rng.choice(
                rows, size=len(fragment_index) - int(is_valid.sum())
            )
    return {name: array[index] for name, array in flat.items()}


def to_sequences(
    fragments: Sequence[Fragment], fields: Sequence[Mapping[str, Array]], length: int
) -> dict[str, Array]:
    """Return the transitions of fragments as S sequences of L steps.

    Rows that are not transitions remain, with a weight of 0.

    Args:
        fragments: Fragments of T steps of N environments each. T is a multiple of L.
        fields: Training data of each fragment by name, (T, N, …).
        length: L.

    Returns:
        The fields, (L, S, …), and in addition `memory`, float32, (S, M), the hidden state before
        each sequence; `begins`, bool, (L, S), the episode starts within sequences; and `weight`,
        float32, (L, S), with a mean of 1, times the `weight` in `fields`, if any.

    Raises:
        ConfigError: No row is valid.
    """
    parts: list[dict[str, Array]] = []
    for fragment, columns in zip(fragments, fields, strict=True):
        begins = np.zeros(fragment.valid.shape, np.bool_)
        begins[1:] = (fragment.terminated | fragment.truncated | ~fragment.valid)[:-1]
        valid = fragment.valid.astype(np.float32)
        steps = {**columns, "begins": begins, "valid": valid}
        memory = fragment.memory[::length]
        parts.append(
            {name: _to_columns(x, length) for name, x in steps.items()}
            | {"memory": memory.reshape(1, -1, memory.shape[-1])}
        )
    joined = {name: _join([part[name] for part in parts], axis=1) for name in parts[0]}
    valid = joined.pop("valid")
    mean = valid.mean()
    if mean == 0.0:
        raise _no_transition_error()
    weight = valid / mean
    if "weight" in joined:
        weight *= joined["weight"]
    return joined | {"weight": weight, "memory": joined["memory"][0]}


def _to_columns(steps: Array, length: int) -> Array:
    """Return steps of shape (T, N, …) as sequences of shape (L, T / L · N, …)."""
    sequences = steps.reshape(-1, length, *steps.shape[1:]).swapaxes(0, 1)
    return sequences.reshape(length, -1, *steps.shape[2:])


def _no_transition_error() -> ConfigError:
    return ConfigError(
        "a fragment must contain a transition, but each of its steps was the reset of an "
        "environment with next-step autoreset: raise `num_steps`"
    )


def environment_weights(fragments: Sequence[Fragment]) -> Array:
    """Return weights that give each environment an equal share of a batch, see `equal_shares`.

    Args:
        fragments: Fragments of t_i steps of N_i environments each.

    Returns:
        float32, (Σ t·N,), in the order of `to_batch`, with a mean of 1.
    """
    steps, envs = np.array([fragment.reward.shape for fragment in fragments]).T
    return np.repeat(equal_shares(steps, envs).astype(np.float32), steps * envs)


def _join(parts: list[Any], axis: int = 0) -> Any:
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis)
