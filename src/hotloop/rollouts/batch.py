"""Batches of transitions, joined from fragments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hotloop.errors import ConfigError
from hotloop.types import Array, Fragment


def to_batch(
    fragments: Sequence[Fragment], fields: Sequence[Mapping[str, Array]], rng: np.random.Generator
) -> dict[str, Array]:
    """Return the transitions of fragments as one batch, environments' resets left out.

    Rows that are no transitions (`valid` is False) are replaced by valid ones drawn at random from
    the same fragment, so that every batch has the same size, and every worker its share of it.

    Args:
        fragments: T steps of N environments each; T may differ.
        fields: of each fragment, what is learned from, (T, N, …), by name.
        rng: drawn from only where a row is not valid.

    Returns:
        The fields, each (Σ T·N, …).

    Raises:
        ConfigError: no row is valid.
    """
    flat = {
        name: _joined([part[name].reshape(-1, *part[name].shape[2:]) for part in fields])
        for name in fields[0]
    }
    if all(fragment.valid.all() for fragment in fragments):
        return flat
    valid = _joined([fragment.valid.reshape(-1) for fragment in fragments])
    if not valid.any():
        raise _no_transition()
    index = np.arange(len(valid))
    start = 0
    for fragment in fragments:
        own = index[start : start + fragment.valid.size]
        start += len(own)
        is_valid = fragment.valid.reshape(-1)
        if not is_valid.all():
            rows = own[is_valid] if is_valid.any() else np.flatnonzero(valid)
            own[~is_valid] = rng.choice(rows, size=len(own) - int(is_valid.sum()))
    return {name: array[index] for name, array in flat.items()}


def to_sequences(
    fragments: Sequence[Fragment], fields: Sequence[Mapping[str, Array]], length: int
) -> dict[str, Array]:
    """Return the transitions of fragments as sequences of L steps, side by side.

    Rows that are no transitions stay where they are, and weigh nothing.

    Args:
        fragments: T steps of N environments each, T a multiple of L.
        fields: of each fragment, what is learned from, (T, N, …), by name.
        length: L.

    Returns:
        The fields, (L, S, …), S of all fragments; beside them `memory`, float32, (S, M), what the
        policy remembered before each sequence; `begins`, bool, (L, S), where an episode begins
        within one; `weight`, float32, (L, S), 1 on average, times that of `fields`, if it is there.

    Raises:
        ConfigError: no row is valid.
    """
    parts: list[dict[str, Array]] = []
    for fragment, given in zip(fragments, fields, strict=True):
        begins = np.zeros(fragment.valid.shape, np.bool_)
        begins[1:] = (fragment.terminated | fragment.truncated | ~fragment.valid)[:-1]
        valid = fragment.valid.astype(np.float32)
        steps = {**given, "begins": begins, "valid": valid}
        memory = fragment.memory[::length]
        parts.append(
            {name: _side_by_side(x, length) for name, x in steps.items()}
            | {"memory": memory.reshape(1, -1, memory.shape[-1])}
        )
    joined = {name: _joined([part[name] for part in parts], axis=1) for name in parts[0]}
    valid = joined.pop("valid")
    mean = valid.mean()
    if mean == 0.0:
        raise _no_transition()
    weight = valid / mean
    if "weight" in joined:
        weight *= joined["weight"]
    return joined | {"weight": weight, "memory": joined["memory"][0]}


def _side_by_side(steps: Array, length: int) -> Array:
    """Return (L, T / L · N, …), from (T, N, …)."""
    cut = steps.reshape(-1, length, *steps.shape[1:]).swapaxes(0, 1)
    return cut.reshape(length, -1, *steps.shape[2:])


def _no_transition() -> ConfigError:
    return ConfigError(
        "a fragment must hold a transition, but every one of its steps was the reset of an "
        "environment with next-step autoreset: raise `num_steps`"
    )


def environment_weights(fragments: Sequence[Fragment]) -> Array:
    """Return weights that give each environment the same share of a batch.

    w_i = T / t_i, with t_i steps of environment i and T their mean over the environments: without
    them the policy would be fitted to the environments that are fast. Variable experience rollouts
    (Wijmans et al. 2022, arXiv:2210.05064), as the importance weights of its authors'
    implementation.

    Args:
        fragments: t_i steps of N_i environments each.

    Returns:
        float32, (Σ t·N,), in the order of `to_batch`; their mean is 1.
    """
    num_envs = sum(fragment.num_envs for fragment in fragments)
    mean_steps = sum(fragment.reward.size for fragment in fragments) / num_envs
    parts = [np.full(x.reward.size, mean_steps / x.num_steps, np.float32) for x in fragments]
    return np.concatenate(parts)


def _joined(parts: list[Array], axis: int = 0) -> Array:
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis)
