"""Acting for environments on the host: drawing actions, log-probabilities, values.

Perceptrons act on NumPy alone (`twin`), other networks through torch (`torch_acting`). `heads` turn
the outputs of a network into actions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from hotloop.envs.encoding import MismatchError, RowWriter
from hotloop.envs.masks import MaskWriter
from hotloop.errors import CheckpointError, ConfigError, ShapeError, shortened
from hotloop.policies.heads import Exploration
from hotloop.policies.heads.base import MASKED, action_limits
from hotloop.policies.network import Network
from hotloop.policies.snapshot import ObsScale, PolicySnapshot
from hotloop.policies.twin import TwinForward
from hotloop.types import Array

if TYPE_CHECKING:
    from hotloop.policies.torch_acting import TorchForward


class ActingPolicy:
    """A network that acts.

    Actions are drawn from noise that the caller passes in (`noise`), so they do not depend on the
    process that acts. `head` is the output of the policy's network, (…, H): logits or means. All
    observations are raw: they are scaled here if the snapshot has an `obs_scale`.

    Args:
        network: the network.
        snapshot: its parameters.
        exploration: how `draw_noise` and `choose` depart from the best action; None: not at all.
        device: where networks are computed that act through torch. Perceptrons are computed by
            NumPy, whatever the device is.
        forward: computes the network's outputs by parameters of its own, such as a
            `LearnerForward`; None: the network acts by the snapshot's.

    Attributes:
        network: the network.
        has_value: whether there is a value function.
        tells_value: whether `last_value` returns the value after `head` and `draw`: one forward of
            a torch module computes both.
        exploration: how it explores; None: not at all.
        snapshot: the last snapshot. Its parameters may have changed in place since.
        version: number of iterations that the snapshot has learned from.
        obs_scale: scale of the snapshot; None: observations are not scaled.
    """

    def __init__(
        self,
        network: Network,
        snapshot: PolicySnapshot,
        *,
        exploration: Exploration | None = None,
        device: str = "cpu",
        forward: TorchForward | None = None,
    ) -> None:
        self.network = network
        self.exploration = exploration
        self.has_value = network.has_value
        self._has_memory = network.memory_size > 0
        self._head = network.make_head(exploration)
        self._limits = action_limits(network.action_spec)
        self.tells_value = network.has_value and network.layers.twin is None
        self._forward = self._make_forward(device) if forward is None else forward
        self._has_own_forward = forward is not None
        self._rng = np.random.default_rng(0)
        self._writer: RowWriter | None = None
        self._masks: MaskWriter | None = None
        mask_size = network.obs_spec.mask_size
        self._num_features: int | None = None
        if mask_size:
            self._masks = MaskWriter(network.action_spec)
            self._num_features = network.obs_spec.shape[0] - mask_size
        self.load(snapshot)

    def _make_forward(self, device: str) -> TwinForward | TorchForward:
        twin = self.network.layers.twin
        if twin is not None:
            return TwinForward(twin)
        # Imported only for networks that need torch.
        from hotloop.policies.torch_acting import ModuleForward

        return ModuleForward(self.network, device)

    @property
    def needs_parameters(self) -> bool:
        """Whether new parameters reach it by `load` and `refresh` alone.

        False of a policy that reads the learner's own, whose snapshot may then be older.
        """
        return not self._has_own_forward or self._head.acts_by_parameters

    def on_host(self) -> ActingPolicy:
        """Return a policy that acts on the CPU by the snapshot: itself, if it does so already."""
        if not self._has_own_forward:
            return self
        return ActingPolicy(self.network, self.snapshot, exploration=self.exploration)

    @property
    def memory_size(self) -> int:
        """Return M, the size of a recurrent network's memory; 0: it has none."""
        return self.network.memory_size

    def load(self, snapshot: PolicySnapshot) -> None:
        """Act with these parameters from now on. Perceptrons do not copy them.

        Raises:
            CheckpointError: a parameter or the scale is missing or has another shape.
        """
        for name, shape in self.network.parameter_shapes().items():
            got = snapshot.params[name].shape if name in snapshot.params else None
            if got != shape:
                raise CheckpointError(
                    f"the policy's parameter `{name}` must have shape {shape}, got {got}: these "
                    "parameters belong to another environment or another network"
                )
        scale, obs_shape = snapshot.obs_scale, self.network.obs_spec.shape
        if scale is not None and scale.mean.shape != obs_shape:
            raise CheckpointError(
                f"the policy's `obs_scale` must have shape {obs_shape}, got {scale.mean.shape}: it "
                "belongs to another environment"
            )
        self.snapshot = snapshot
        self.version = snapshot.version
        self.obs_scale = scale
        self._tiled_scale: ObsScale | None = None
        self._folded = self._head.fold(snapshot.params)
        self._forward.load(replace(snapshot, params=self._folded))
        self._head.load(snapshot.params)

    def refresh(self, version: int) -> None:
        """Read the loaded parameters again, which were changed in place."""
        self.version = version
        if not self.needs_parameters:
            return
        folded = self._head.fold(self.snapshot.params)
        for name, array in self._folded.items():
            if array is not folded[name]:  # what a head puts together anew
                np.copyto(array, folded[name])
        self._forward.refresh()
        self._head.load(self.snapshot.params)

    # --- the rollout's side: no checks, nothing allocated but what NumPy needs -------------------

    def draw_noise(
        self, seed: int, *, first_step: int, num_steps: int, num_envs: int, first_env: int = 0
    ) -> Array:
        """Return what turns `head` into an action, for many steps, and how it explores.

        It depends on (seed, step, environment) alone.

        Returns:
            float32, (T, N, K).
        """
        return self._head.draw_noise(
            seed, first_step=first_step, num_steps=num_steps, num_envs=num_envs, first_env=first_env
        )

    def scaled(self, obs: Array, out: Array | None = None) -> Array:
        """Return what the network sees of raw observations, and is to be trained on.

        Args:
            obs: (…, *obs_shape), any leading axes.
            out: the same shape, written in place and returned.

        Returns:
            float32, (…, *obs_shape): scaled where there is a scale. Where there is none, bytes stay
            bytes for a module of the user's own, and `obs` itself may be returned.
        """
        if self.obs_scale is not None:
            return self.obs_scale.apply(obs, out)
        if out is None:
            return obs.astype(self._forward.obs_dtype, copy=False)
        np.copyto(out, obs, casting="same_kind")
        return out

    def head(self, obs: Array, out: Array | None = None, memory: Array | None = None) -> Array:
        """Return what the network gives: logits or means.

        Args:
            obs: (B, *obs_shape).
            out: float32, (B, H), contiguous; written in place and returned.
            memory: of a policy with memory, float32, (B, M), what it remembers; changed in place.
        """
        self._check_has(memory)
        if self.obs_scale is not None:
            obs = self._scale(obs)
        if self._num_features is None:
            return self._forward.head(obs, out, memory)
        head = self._forward.head(np.ascontiguousarray(obs[:, : self._num_features]), out, memory)
        np.copyto(head, MASKED, where=obs[:, self._num_features :] <= 0.0)
        return head

    def value(self, obs: Array, memory: Array | None = None) -> Array:
        """Return V(obs): float32, (B,), from `obs` of (B, *obs_shape).

        Args:
            obs: (B, *obs_shape).
            memory: of a policy with memory, float32, (B, M), what it remembers; left alone.

        Raises:
            ConfigError: the policy was learned without a value function.
        """
        if not self.has_value:
            raise ConfigError(
                "what learned from replay has no value function beside its policy: `head` gives "
                "all that the network says, of DQN the actions' values"
            )
        self._check_has(memory)
        if self.obs_scale is not None:
            obs = self.obs_scale.apply(obs)
        if self._num_features is not None:
            obs = np.ascontiguousarray(obs[:, : self._num_features])
        return self._forward.value(obs, None if memory is None else memory.copy())

    def remembered_value(self, memory: Array) -> Array:
        """Return V, (B,), of the last step from the memory after it, if `tells_value` is False."""
        assert isinstance(self._forward, TwinForward)
        assert self.network.layers.memory is not None
        output = memory[:, : self.network.layers.memory.num_units]
        return self._forward.value_of_output(np.ascontiguousarray(output))

    def last_value(self) -> Array:
        """Return V of what was acted on last, where the policy `tells_value`: float32, (B,)."""
        assert not isinstance(self._forward, TwinForward)
        assert self._forward.last_value is not None
        return self._forward.last_value

    def head_and_value(
        self, obs: Array, out: Array | None, memory: Array | None
    ) -> tuple[Array, Array | None]:
        """Return `head`, and V(obs), float32, (B,); None where there is no value function."""
        head = self.head(obs, out, memory)
        if self.tells_value:
            return head, self.last_value()
        if memory is not None and self.has_value:
            return head, self.remembered_value(memory)
        return head, self.value(obs) if self.has_value else None

    def needs_head(self, noise: Array) -> bool:
        """Return whether `choose` looks at `head`, with `noise`, (B, K), of one step."""
        return self._head.is_needed(noise)

    def choose(self, head: Array, noise: Array, out: Array) -> None:
        """Draw actions into `out`, (B, *action_shape), from `head`, (B, H), and `noise`, (B, K).

        All rows are of one step: whether they explore is looked up in the first one.
        """
        self._head.choose(head, noise, out)

    def draw(
        self, obs: Array, noise: Array, head: Array, out: Array, memory: Array | None = None
    ) -> None:
        """One step of a rollout: `head` and then `choose`, where the network is asked at all."""
        if memory is not None or self.needs_head(noise):
            self.head(obs, head, memory)
        self._head.choose(head, noise, out)

    def greedy(self, obs: Array, memory: Array | None = None) -> Array:
        """Return the most probable actions, (B, *action_shape), from `obs` of (B, *obs_shape).

        What a policy with memory remembers, float32, (B, M), changes in place.
        """
        spec = self.network.action_spec
        action = np.empty((len(obs), *spec.shape), spec.dtype)
        self._head.greedy(self.head(obs, None, memory), action)
        return action

    def new_memory(self, num_envs: int | None = None) -> Array | None:
        """Return what a policy with memory remembers before an episode: zeros, float32.

        Args:
            num_envs: B; None: of one environment, without a batch axis.

        Returns:
            (B, M) or (M,); None: this policy has no memory.
        """
        if not self.memory_size:
            return None
        shape = (self.memory_size,) if num_envs is None else (num_envs, self.memory_size)
        return np.zeros(shape, np.float32)

    def log_prob(self, head: Array, noise: Array, action: Array) -> Array:
        """Return log π(action) for a whole fragment at once: cheaper than at each step.

        Args:
            head: float32, (T, N, H), as `head` gave it when the actions were drawn.
            noise: float32, (T, N, K), that they were drawn with.
            action: (T, N, *action_shape).

        Returns:
            float32, (T, N).

        Raises:
            ConfigError: this head keeps none.
        """
        log_prob = getattr(self._head, "log_prob", None)
        if log_prob is None:
            raise ConfigError(
                f"a policy with the head '{self.network.head}' keeps no log-probabilities: "
                "`LearnedNetwork.sample` computes those of sac"
            )
        return log_prob(head, noise, action)

    # --- the user's side ------------------------------------------------------------------------

    def act(
        self,
        obs: Any,
        memory: Array | None = None,
        *,
        action_mask: Any = None,
        deterministic: bool = True,
        rng: np.random.Generator | None = None,
    ) -> Array:
        """Return actions for the environment: `env.step(policy.act(obs))`.

        Args:
            obs: one observation as the environment gives it, or a batch: (B, …), of a dict or tuple
                in each part. Rows as `make_vec` makes them do as well, (B, *obs_shape).
            memory: of a policy with memory, what it remembers, from `new_memory`; changed in place.
                Set it to 0 where an episode begins.
            action_mask: of a policy that was trained with `action_masks`, 1 for each action that is
                allowed and 0 for the others, (M,) or (B, M): `info["action_mask"]`. Rows of
                `make_vec` hold it already.
            deterministic: take the most probable action (the mean); else draw one.
            rng: to draw with; by default the policy's own, seeded with 0.

        Returns:
            One action or a batch of them, box actions clipped to their bounds.

        Raises:
            ShapeError: `obs` is neither one observation nor a batch of them, or `action_mask` or
                `memory` is missing or not such.
            ConfigError: the policy was trained without masks or memory, and one is given.
        """
        batch, is_single = self._rows(obs, action_mask)
        remembered = self._memories(memory, len(batch), is_single=is_single)
        spec = self.network.action_spec
        if deterministic:
            action = self.greedy(batch, remembered)
        else:
            rng = rng or self._rng
            head = self.head(batch, None, remembered)
            noise = self._head.draw_from(rng, head.shape)
            action = np.empty((len(batch), *spec.shape), spec.dtype)
            self.choose(head, noise, action)
        if spec.kind == "box":
            np.clip(action, self._limits["low"], self._limits["high"], out=action)
        else:
            action += self._limits["start"]
        return action[0] if is_single else action

    def to_numpy_file(self, path: str | Path) -> list[Path]:
        """Write it for a machine without hotloop: weights, and a Python file that acts with them.

        Args:
            path: of the weights, which ends in .npz; the Python file is named alike. Or a folder
                for `policy.npz` and `policy.py`.

        Returns:
            Both files.

        Raises:
            ConfigError: the network acts through torch, or another Python file has that name.
            OutputError: a file can't be written.
        """
        from hotloop.policies.export import export_numpy

        return export_numpy(self.network, self.snapshot, Path(path))

    def to_onnx_file(self, path: str | Path) -> Path:
        """Write it as an ONNX graph, see `hotloop.policies.export.export_onnx`.

        Raises:
            ConfigError: torch can't turn the network into a graph.
            MissingExtraError: what writes graphs is not installed.
            OutputError: the file can't be written.
        """
        from hotloop.policies.export import export_onnx

        return export_onnx(self.network, self.snapshot, Path(path))[0]

    def _memories(self, memory: Array | None, num_rows: int, *, is_single: bool) -> Array | None:
        """Return what is remembered, (B, M), as a view of what was given."""
        if not self.memory_size:
            if memory is not None:
                raise ConfigError(
                    "`memory` is for policies that were trained with `memory`: leave it out"
                )
            return None
        shape = (self.memory_size,) if is_single else (num_rows, self.memory_size)
        if not _is_float32(memory, shape):
            given = "none" if memory is None else shortened(repr(memory))
            if isinstance(memory, np.ndarray):
                given = f"{memory.dtype} of shape {memory.shape}"
            count = "" if is_single else f"{num_rows}"
            raise ShapeError(
                f"`memory` must be float32 of shape {shape}, what this policy remembers, got "
                f"{given}: begin each episode with `memory = policy.new_memory({count})`, and pass "
                "it each time"
            )
        return memory[None] if is_single else memory

    def _check_has(self, memory: Array | None) -> None:
        if memory is None and self._has_memory:
            raise ShapeError(
                f"`memory` must be float32 of shape (B, {self.memory_size}), what this policy "
                "remembers, got none: `new_memory(B)` makes the first one"
            )

    def _rows(self, obs: Any, action_mask: Any) -> tuple[Array, bool]:
        """Return observations as rows, (B, *obs_shape), and whether it was one."""
        if self._masks is None:
            if action_mask is not None:
                raise ConfigError(
                    "`action_mask` is for policies that were trained with `action_masks`: leave it "
                    "out, or train with the option"
                )
            return self._unmasked_rows(obs)
        shape = self.network.obs_spec.shape
        if action_mask is None:
            rows = _array(obs) if not isinstance(obs, Mapping | tuple) else np.empty(0)
            if rows.shape[-1:] != shape or rows.ndim not in (1, 2):
                raise ShapeError(
                    f"`action_mask` must be 0 and 1, ({self._masks.size},) or (B, "
                    f"{self._masks.size}), got none: pass `info['action_mask']`, as this policy "
                    "was trained with `action_masks`"
                )
            return (rows[None], True) if rows.ndim == 1 else (rows, False)
        features, is_single = self._unmasked_rows(obs)
        batch = np.empty((len(features), *shape), np.float32)
        batch[:, : self._num_features] = features
        mask = batch[:, self._num_features :]
        try:
            self._masks.write(action_mask, mask[0] if is_single else mask)
        except MismatchError as error:
            raise ShapeError(str(error)) from None
        return batch, is_single

    def _unmasked_rows(self, obs: Any) -> tuple[Array, bool]:
        spec = self.network.obs_spec.unmasked
        is_raw = spec.is_composite and isinstance(obs, Mapping | tuple)
        if [part.encoding for part in spec.layout] == ["one_hot"] and not spec.is_composite:
            is_raw = _array(obs).dtype.kind != "f"  # rows are float32
        if is_raw:
            if self._writer is None:
                self._writer = RowWriter(spec)
            return self._writer.rows(obs)
        array, shape = _array(obs), spec.shape
        if array.dtype.kind not in "biuf":
            wanted = self._parts() if spec.is_composite else f"numbers of shape {shape}"
            raise ShapeError(f"`obs` must be {wanted}, got {shortened(repr(obs))}")
        obs = array
        if obs.shape == shape:
            return obs[None], True
        if obs.shape[1:] != shape:
            rows = f"{shape} or (B, {', '.join(map(str, shape))})"
            raise ShapeError(
                f"`obs` must have shape {rows}, got {obs.shape}"
                if not spec.is_composite
                else f"`obs` must be {self._parts()}, or rows of shape {rows}, got {obs.shape}"
            )
        return obs, False

    def _parts(self) -> str:
        """Describe what the environment gives of several parts."""
        spec = self.network.obs_spec
        names = ", ".join(repr(part.name) for part in spec.layout)
        return f"a tuple of {len(spec.layout)}" if spec.is_tuple else f"a dict with {names}"

    def _scale(self, obs: Array) -> Array:
        """Return scaled observations, in memory that is kept for the next batch of this size."""
        assert self.obs_scale is not None
        if self._tiled_scale is None or self._tiled_scale.mean.shape != obs.shape:
            self._tiled_scale = self.obs_scale.tiled(len(obs))
            self._scaled = np.empty(obs.shape, np.float32)
        return self._tiled_scale.apply(obs, self._scaled)


def _is_float32(array: Any, shape: tuple[int, ...]) -> TypeGuard[Array]:
    return isinstance(array, np.ndarray) and array.dtype == np.float32 and array.shape == shape


def _array(obs: Any) -> Array:
    """As an array; of objects where it is none, such as lists of different lengths."""
    try:
        return np.asarray(obs)
    except ValueError:
        return np.empty((), object)
