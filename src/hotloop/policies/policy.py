"""Trained policies for users: observations as environments return them, and checked arguments."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from hotloop.base.html_page import aligned_rows
from hotloop.envs.encoding import MASK_KEY, MismatchError, RowWriter
from hotloop.envs.masks import MaskWriter
from hotloop.errors import ConfigError, ShapeError, shortened
from hotloop.policies.acting import ActingPolicy
from hotloop.policies.snapshot import PolicySnapshot
from hotloop.types import Array


class TrainedPolicy:
    """A policy that acts on a user's observations, and writes itself to files.

    Args:
        acting: the policy that acts on rows.

    Attributes:
        acting: the policy that acts on rows.
        network: its network.
    """

    def __init__(self, acting: ActingPolicy) -> None:
        self.acting, self.network = acting, acting.network
        self._rng = np.random.default_rng(0)
        self._writer: RowWriter | None = None
        spec = acting.network.action_spec
        self._masks = MaskWriter(spec) if spec.is_masked else None

    def __repr__(self) -> str:
        return f"TrainedPolicy({'; '.join(f'{x}: {y}' for x, y in self._facts().items())})"

    def _repr_html_(self) -> str:
        """Return the policy's spaces and size for notebooks."""
        return aligned_rows(self._facts())

    def _facts(self) -> dict[str, str]:
        obs, action = self.network.obs_spec, self.network.action_spec
        sizes = (math.prod(shape) for shape in self.network.parameter_shapes().values())
        return {
            "observation": f"{obs.dtype}, shape {obs.shape}",
            "action": f"{action.kind}, "
            + (f"shape {action.shape}" if action.shape else f"{action.num_actions} values"),
            "parameters": f"{sum(sizes):,}",
            "iterations": f"{self.version:,}",
        }

    @property
    def snapshot(self) -> PolicySnapshot:
        """Return its parameters and the scale of observations."""
        return self.acting.snapshot

    @property
    def version(self) -> int:
        """Return the number of learning iterations behind its parameters."""
        return self.acting.version

    def act(
        self,
        obs: Any,
        memory: Array | None = None,
        *,
        action_mask: Any = None,
        deterministic: bool = True,
        rng: np.random.Generator | None = None,
    ) -> Any:
        """Return actions for the environment: `env.step(policy.act(obs))`.

        Args:
            obs: one observation of the environment, or a batch: (B, …), for a dict or tuple in each
                part. Rows of `make_vec`, (B, *obs_shape), are accepted too.
            memory: hidden state of a recurrent policy, from `new_memory`; changed in place. Set it
                to 0 at the start of an episode.
            action_mask: for a policy that was trained with `action_masks`, 1 for each allowed
                action and 0 for the others, (M,) or (B, M): `info["action_mask"]`. None: the entry
                `action_mask` of a dict observation.
            deterministic: take the most probable action (the mean); else sample one. It makes no
                difference for a policy without probabilities, such as DQN's and TD3's.
            rng: generator for sampling; default: the policy's own, seeded with 0.

        Returns:
            One action of the space or a batch of them: an array in the dtype of the space, box
            actions within their bounds, or a dict or tuple of arrays.

        Raises:
            ShapeError: `obs` is neither one observation nor a batch of them, or `action_mask` or
                `memory` is missing or has another shape.
            ConfigError: an `action_mask` or a `memory` for a policy trained without it.
        """
        batch, is_single = self._obs_rows(obs)
        mask = self._mask_rows(obs, action_mask, len(batch), is_single=is_single)
        hidden_state = self._memory_rows(memory, len(batch), is_single=is_single)
        if deterministic:
            action = self.acting.greedy(batch, hidden_state, mask)
        else:
            action = self.acting.sample(batch, rng or self._rng, hidden_state, mask)
        return self.network.action_spec.decode(action[0] if is_single else action)

    def head(self, obs: Array, memory: Array | None = None) -> Array:
        """Return the outputs of the network: logits or means, also of forbidden actions.

        Args:
            obs: rows, (B, *obs_shape).
            memory: hidden state of a recurrent policy, float32, (B, M); changed in place.

        Returns:
            float32, (B, H).

        Raises:
            ShapeError, ConfigError: `memory` is missing, wrong or not for this policy.
        """
        return self.acting.head(obs, None, self._memory_rows(memory, len(obs), is_single=False))

    def value(self, obs: Array, memory: Array | None = None) -> Array:
        """Return V(obs): float32, (B,), from rows, (B, *obs_shape). `memory` does not change.

        Raises:
            ConfigError: the policy has no value function.
            ShapeError, ConfigError: see `head`.
        """
        if not self.acting.has_value:
            raise ConfigError(
                "a policy that learned from replay has no value function: call `head` for the "
                "outputs of the network (the action values of DQN)"
            )
        return self.acting.value(obs, self._memory_rows(memory, len(obs), is_single=False))

    def new_memory(self, num_envs: int | None = None) -> Array | None:
        """Return the hidden state at the start of an episode: zeros, float32.

        Args:
            num_envs: B; None: one environment, without a batch axis.

        Returns:
            (B, M) or (M,); None: this policy is not recurrent.
        """
        memory = self.acting.new_memory(1 if num_envs is None else num_envs)
        return memory[0] if memory is not None and num_envs is None else memory

    def to_numpy_file(self, path: str | Path) -> list[Path]:
        """Write the weights and a Python file that acts with them on NumPy, without hotloop.

        Args:
            path: file for the weights, ending in .npz, with the Python file beside it under the
                same name. Or a folder for `policy.npz` and `policy.py`.

        Returns:
            The paths of both files.

        Raises:
            ConfigError: the network acts through torch, or another Python file has that name.
            OutputError: a file can't be written.
        """
        from hotloop.policies.export import export_numpy

        return export_numpy(self.network, self.snapshot, Path(path))

    def to_onnx_file(self, path: str | Path) -> Path:
        """Write the policy as an ONNX graph, see `hotloop.policies.export.export_onnx`.

        Raises:
            ConfigError: torch can't turn the network into a graph.
            MissingExtraError: the packages for ONNX are not installed.
            OutputError: the file can't be written.
        """
        from hotloop.policies.export import export_onnx

        return export_onnx(self.network, self.snapshot, Path(path))[0]

    def _memory_rows(self, memory: Array | None, num_rows: int, *, is_single: bool) -> Array | None:
        """Return the hidden state, (B, M), as a view of `memory`."""
        if not self.acting.memory_size:
            if memory is not None:
                raise ConfigError(
                    "`memory` is for policies that were trained with `memory`: leave it out"
                )
            return None
        shape = (self.acting.memory_size,) if is_single else (num_rows, self.acting.memory_size)
        if not _is_float32(memory, shape):
            received = "none" if memory is None else shortened(repr(memory))
            if isinstance(memory, np.ndarray):
                received = f"{memory.dtype} of shape {memory.shape}"
            count = "" if is_single else f"{num_rows}"
            raise ShapeError(
                f"`memory` must be the hidden state of this policy, float32 of shape {shape}, got "
                f"{received}: start each episode with `memory = policy.new_memory({count})`, and "
                "pass it in every step"
            )
        return memory[None] if is_single else memory

    def _mask_rows(self, obs: Any, action_mask: Any, num_rows: int, *, is_single: bool) -> Array:
        """Return masks as rows, bool, (B, M)."""
        if self._masks is None:
            if action_mask is not None:
                raise ConfigError(
                    "`action_mask` is for policies that were trained with `action_masks`: leave it "
                    "out, or train with the option"
                )
            return np.empty((num_rows, 0), np.bool_)
        size = self._masks.size
        if action_mask is None and isinstance(obs, Mapping):
            action_mask = obs.get(MASK_KEY)
        if action_mask is None:
            raise ShapeError(
                f"`action_mask` must be 0 and 1, ({size},) or (B, {size}), got none: pass "
                "`info['action_mask']`, as this policy was trained with `action_masks`"
            )
        mask = np.empty((num_rows, size), np.bool_)
        try:
            self._masks.write(action_mask, mask[0] if is_single else mask)
        except MismatchError as error:
            raise ShapeError(str(error)) from None
        return mask

    def _obs_rows(self, obs: Any) -> tuple[Array, bool]:
        """Return observations as rows, (B, *obs_shape), and whether `obs` was a single one."""
        spec = self.network.obs_spec
        is_raw = spec.is_composite and isinstance(obs, Mapping | tuple)
        if [part.encoding for part in spec.layout] == ["one_hot"] and not spec.is_composite:
            is_raw = _as_array(obs).dtype.kind != "f"  # rows would be float32
        if is_raw:
            if self._writer is None:
                self._writer = RowWriter(spec)
            return self._writer.rows(obs)
        array, shape = _as_array(obs), spec.shape
        if array.shape == () and spec.layout[0].raw_shape == () and not spec.is_composite:
            array = array.reshape(shape)
        if array.dtype.kind not in "biuf":
            expected = self._parts_text() if spec.is_composite else f"numbers of shape {shape}"
            raise ShapeError(f"`obs` must be {expected}, got {shortened(repr(obs))}")
        obs = array
        if obs.shape == shape:
            return obs[None], True
        if obs.shape[1:] != shape:
            rows = f"{shape} or (B, {', '.join(map(str, shape))})"
            raise ShapeError(
                f"`obs` must have shape {rows}, got {obs.shape}"
                if not spec.is_composite
                else f"`obs` must be {self._parts_text()}, or rows of shape {rows}, got {obs.shape}"
            )
        return obs, False

    def _parts_text(self) -> str:
        """Return a phrase for an observation with several parts."""
        spec = self.network.obs_spec
        names = ", ".join(repr(part.name) for part in spec.layout)
        return f"a tuple of {len(spec.layout)}" if spec.is_tuple else f"a dict with {names}"


def _is_float32(array: Any, shape: tuple[int, ...]) -> TypeGuard[Array]:
    return isinstance(array, np.ndarray) and array.dtype == np.float32 and array.shape == shape


def _as_array(obs: Any) -> Array:
    """Return an array. Its items are objects if the shapes of the parts differ."""
    try:
        return np.asarray(obs)
    except ValueError:
        return np.empty((), object)
