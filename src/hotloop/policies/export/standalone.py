"""A trained policy on NumPy alone: `hotloop export --format numpy` writes a copy of this file.

from policy import Policy

policy = Policy("policy.npz")
action = policy.act(obs)  # one observation as the environment gives it, or a batch of them

For a recurrent policy, start each episode with `memory = policy.new_memory()`, and call
`policy.act(obs, memory)` in each step.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np


class Policy:
    """A policy of multilayer perceptrons, with an optional recurrent layer.

    Args:
        path: the file `policy.npz` beside this file.

    Attributes:
        metadata: description of the export: environment, algorithm, checkpoint, spaces.
        obs_shape: shape of one observation.
        action_shape: shape of one action.
    """

    def __init__(self, path: Any) -> None:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        self.metadata: dict[str, Any] = json.loads(str(arrays.pop("about")))
        self.obs_shape = tuple(self.metadata["obs_shape"])
        self.action_shape = tuple(self.metadata["action_shape"])
        self._arrays = arrays

    def new_memory(self, num_envs: int | None = None) -> np.ndarray | None:
        """Return the hidden state at the start of an episode: zeros, float32.

        Args:
            num_envs: B; None: one environment, without a batch axis.

        Returns:
            (B, M) or (M,); None: this policy is not recurrent.
        """
        memory = self.metadata.get("memory")
        if memory is None:
            return None
        shape = (memory["size"],) if num_envs is None else (num_envs, memory["size"])
        return np.zeros(shape, np.float32)

    def act(self, obs: Any, memory: np.ndarray | None = None, action_mask: Any = None) -> Any:
        """Return the most probable action for the environment's `step`.

        Args:
            obs: one observation of the environment, or a batch: (B, ...), for a dict or a tuple in
                each part. Rows, `obs_shape` or (B, *obs_shape), are accepted too.
            memory: hidden state of a recurrent policy, float32, (M,) or (B, M), changed in place.
            action_mask: for a policy with action masks, 1 for each allowed action and 0 for the
                others, (A,) or (B, A). None: the entry `action_mask` of a dict observation.

        Returns:
            One action of the space, `action_shape`, or (B, *action_shape), in its dtype, box
            actions within their bounds. A dict or tuple of arrays for a space with parts.

        Raises:
            ValueError: `obs`, `memory` or `action_mask` is missing, wrong or not for this policy.
        """
        batch, is_single = self._batch(obs)
        mask = self._mask(obs, action_mask, () if is_single else (len(batch),))
        head = self._perceptron(self._features(batch, memory), self.metadata["policy_layers"])
        if "atoms" in self._arrays:
            head = self._mean_returns(head)
        if mask is not None:
            logits = head[:, : mask.shape[-1]]
            logits[~mask.reshape(logits.shape)] = -np.inf
        return self._decoded(self._chosen(head), is_single)

    def head(self, obs: Any, memory: np.ndarray | None = None) -> np.ndarray:
        """Return the network's outputs for the actions: float32, (H,) or (B, H).

        Their meaning is `metadata["head"]`: `logits`, `means` of continuous actions, before they
        are scaled to distant bounds, `action_values`, one for each action, `return_logits` of the
        atoms of the return for each action, `deterministic`, actions before tanh, or
        `squashed_gaussian`, means before tanh followed by raw log standard deviations of training.
        `memory` changes as in `act`.
        """
        batch, is_single = self._batch(obs)
        head = self._perceptron(self._features(batch, memory), self.metadata["policy_layers"])
        return head[0] if is_single else head

    def value(self, obs: Any, memory: np.ndarray | None = None) -> np.ndarray:
        """Return the value function's estimate: float32, () or (B,). `memory` does not change.

        Raises:
            ValueError: the policy has no value function.
        """
        if not self.metadata["value_layers"]:
            raise ValueError(
                f"a policy with a head of {self.metadata['head']} has no value function: "
                "call `head` for the network's outputs"
            )
        batch, is_single = self._batch(obs)
        features = self._features(batch, None if memory is None else memory.copy())
        value = self._perceptron(features, self.metadata["value_layers"])[:, 0]
        return value[0] if is_single else value

    def _chosen(self, head: np.ndarray) -> np.ndarray:
        """Return the most probable actions as rows, with offsets and within bounds."""
        nvec = self._arrays.get("nvec", np.zeros(0, np.int64))
        ends = np.cumsum(nvec)
        logits, outputs = np.split(head, ends[-1:], axis=1) if len(nvec) else (None, head)
        columns = []
        if logits is not None:
            parts = [part.argmax(axis=1) for part in np.split(logits, ends[:-1], axis=1)]
            columns.append(np.stack(parts, axis=1) + self._arrays["start"])
        if "low" in self._arrays:
            if "half" in self._arrays:
                is_mean = self.metadata["head"].endswith("means")
                unit = outputs if is_mean else np.tanh(outputs[:, : len(self._arrays["half"])])
                outputs = unit * self._arrays["half"] + self._arrays["centre"]
            low, high = (self._arrays[name].reshape(-1) for name in ("low", "high"))
            columns.append(np.clip(outputs, low, high))
        return np.concatenate(columns, axis=1)

    def _decoded(self, rows: np.ndarray, is_single: bool) -> Any:
        """Return rows as actions of the space."""
        parts = self.metadata["action_parts"]
        if not parts:
            action = _as_action(rows, self.action_shape, self.metadata["action_dtype"])
            return action[0] if is_single else action
        values = []
        for part in parts:
            start, stop = part["columns"]
            value = _as_action(rows[:, start:stop], part["shape"], part["dtype"])
            values.append(np.asarray(value[0]) if is_single else value)
        if self.metadata["action_is_tuple"]:
            return tuple(values)
        return dict(zip([part["name"] for part in parts], values, strict=True))

    def _batch(self, obs: Any) -> tuple[np.ndarray, bool]:
        """Return scaled observations, float32, (B, D), and whether `obs` was a single one."""
        obs = self._row(obs)
        is_single = obs.shape == self.obs_shape
        if not is_single and obs.shape[1:] != self.obs_shape:
            raise ValueError(
                f"`obs` must have shape {self.obs_shape} or (B, *{self.obs_shape}), got {obs.shape}"
            )
        batch = obs[None] if is_single else obs
        batch = batch.astype(np.float32, copy=False)
        if "obs_mean" in self._arrays:
            clip = self._arrays["obs_clip"]
            batch = (batch - self._arrays["obs_mean"]) / self._arrays["obs_std"]
            batch = batch.clip(-clip, clip)
        return batch.reshape(len(batch), -1), is_single

    def _row(self, obs: Any) -> np.ndarray:
        """Return an observation as a row, or a batch as rows. Rows are returned unchanged."""
        parts = self.metadata["obs_layout"]
        if isinstance(obs, dict):
            by_name = {str(key): value for key, value in obs.items()}
            names = [part["name"] for part in parts]
            if not all(name in by_name for name in names):
                raise ValueError(f"`obs` must have the keys {names}, got {list(by_name)}")
            values = [by_name[name] for name in names]
        elif isinstance(obs, tuple) and parts[0]["name"]:
            if len(obs) != len(parts):
                raise ValueError(f"`obs` must be a tuple of {len(parts)}, got one of {len(obs)}")
            values = list(obs)
        elif parts[0]["encoding"] == "one_hot" and not parts[0]["name"]:
            obs = np.asarray(obs)
            if obs.dtype.kind == "f":
                return obs
            values = [obs]
        else:
            obs = np.asarray(obs)
            return obs.reshape(1) if obs.shape == () and self.obs_shape == (1,) else obs
        return np.concatenate(
            [_numbers(value, part) for value, part in zip(values, parts, strict=True)], axis=-1
        )

    def _mask(self, obs: Any, action_mask: Any, batch_shape: tuple[int, ...]) -> np.ndarray | None:
        """Return checked masks, bool, or None for a policy without them."""
        size = self.metadata["mask_size"]
        if not size:
            if action_mask is not None:
                raise ValueError("`action_mask` is not for this policy: leave it out")
            return None
        if action_mask is None and isinstance(obs, dict):
            action_mask = obs.get("action_mask")
        mask = np.asarray(action_mask)
        if mask.shape != (*batch_shape, size):
            raise ValueError(
                f"`action_mask` must be of shape ({size},) or (B, {size}), got "
                f"{'none' if action_mask is None else mask.shape}: pass `info['action_mask']`"
            )
        if mask.dtype.kind not in "biuf" or not np.isin(mask, (0, 1)).all():
            raise ValueError(
                "`action_mask` must be 1 for allowed actions and 0 for the others, got other values"
            )
        ends = np.cumsum(self._arrays["nvec"])[:-1] if "nvec" in self._arrays else []
        if not all(part.any(axis=-1).all() for part in np.split(mask, ends, axis=-1)):
            raise ValueError("`action_mask` must allow an action, got only zeros")
        return mask.astype(np.bool_)

    def _features(self, batch: np.ndarray, memory: np.ndarray | None) -> np.ndarray:
        """Return the observations or the recurrent output, or ValueError for bad `memory`."""
        layer = self.metadata.get("memory")
        expected = None if layer is None else (len(batch), layer["size"])
        if memory is not None and not isinstance(memory, np.ndarray):
            raise ValueError(f"`memory` must be an array of `new_memory`, got {memory!r}")
        rows = None if memory is None else memory.reshape(-1, memory.shape[-1])
        if (None if rows is None else rows.shape) != expected:
            raise ValueError(
                f"`memory` must be {'left out' if layer is None else f'of shape {expected}'}, got "
                f"{'none' if memory is None else memory.shape}: use `new_memory` at first"
            )
        if rows is None or layer is None:
            return batch
        size, weight = layer["units"], self._arrays["memory.weight"]
        gates = batch @ weight[:-size] + self._arrays["memory.bias"]
        products = rows[:, :size] @ weight[-size:]
        if layer["kind"] == "lstm":
            gates += products
            in_gate, forget_gate, out_gate = np.split(_sigmoid(gates[:, : 3 * size]), 3, axis=1)
            rows[:, size:] = forget_gate * rows[:, size:] + in_gate * np.tanh(gates[:, 3 * size :])
            rows[:, :size] = out_gate * np.tanh(rows[:, size:])
        else:
            gates[:, : 2 * size] += products[:, : 2 * size]
            reset_gate, keep_gate = np.split(_sigmoid(gates[:, : 2 * size]), 2, axis=1)
            candidate = np.tanh(gates[:, 2 * size :] + reset_gate * products[:, 2 * size :])
            rows[:] = candidate + keep_gate * (rows - candidate)
        return rows[:, :size]

    def _mean_returns(self, logits: np.ndarray) -> np.ndarray:
        """Return the mean of each action's distribution of returns, (B, A)."""
        atoms = self._arrays["atoms"]
        logits = logits.reshape(len(logits), -1, len(atoms))
        weights = np.exp(logits - logits.max(axis=2, keepdims=True))
        return weights @ atoms / weights.sum(axis=2)

    def _perceptron(self, batch: np.ndarray, layers: list[str]) -> np.ndarray:
        for layer in layers:
            batch = np.dot(batch, self._arrays[f"{layer}.weight"]) + self._arrays[f"{layer}.bias"]
            if layer != layers[-1]:
                is_tanh = self.metadata["activation"] == "tanh"
                batch = np.tanh(batch) if is_tanh else np.maximum(batch, np.float32(0.0))
        return batch


def _as_action(rows: np.ndarray, shape: Any, dtype: str) -> np.ndarray:
    """Return numbers in a shape and a dtype. Integers are the nearest ones."""
    action = rows.reshape(len(rows), *shape)
    is_rounded = np.dtype(dtype).kind in "iu" and action.dtype.kind == "f"
    return (np.rint(action) if is_rounded else action).astype(dtype, copy=False)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.tanh(x * np.float32(0.5)) * np.float32(0.5) + np.float32(0.5)


def _numbers(value: Any, part: dict[str, Any]) -> np.ndarray:
    """Return a part of an observation, or a batch of it, as float32, (D,) or (B, D)."""
    if part["raw_shape"] is None:
        raise ValueError(
            "the run of this policy did not store the shapes of observations: pass `obs` as "
            "encoded floats, one row per observation"
        )
    value, shape = np.asarray(value), tuple(part["raw_shape"])
    batch = value.shape[: value.ndim - len(shape)]
    label = f"part '{part['name']}' of `obs`" if part["name"] else "`obs`"
    if len(batch) > 1 or value.shape != (*batch, *shape):
        raise ValueError(f"{label} must have shape {shape} or (B, *{shape}), got {value.shape}")
    value = value.reshape(*batch, -1)
    if part["encoding"] != "one_hot":
        return value.astype(np.float32, copy=False)
    counts = np.array(part["counts"])
    index = value - np.array(part["starts"])
    if value.dtype.kind not in "iu" or (index < 0).any() or (index >= counts).any():
        raise ValueError(f"{label} must be one of its categories, got {value.tolist()}")
    row = np.zeros((*batch, counts.sum()), np.float32)
    np.put_along_axis(row, index + np.cumsum(counts) - counts, 1.0, axis=-1)
    return row
