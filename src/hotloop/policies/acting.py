"""Policies that act for rollouts on the host: sampled actions, log-probabilities, values.

Perceptrons act on NumPy alone (`forward_numpy`), other networks through torch (`torch_acting`).
`heads` turn the outputs of a network into actions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hotloop.base.stored_values import check_importable, check_storable
from hotloop.errors import CheckpointError
from hotloop.policies.exploration import Exploration
from hotloop.policies.forward_numpy import NumpyForward
from hotloop.policies.noisy_layers import NOISE
from hotloop.policies.snapshot import PolicySnapshot
from hotloop.policies.spec import Network
from hotloop.types import Array

if TYPE_CHECKING:
    from hotloop.policies.torch_acting import TorchForward


class ActingPolicy:
    """A network that acts for rollouts, without checks of its inputs. See `TrainedPolicy`.

    Actions are sampled with noise that the caller passes in, so they do not depend on the acting
    process. `head` is the output of the policy's network, (…, H): logits or means. All observations
    are raw: the policy scales them if the snapshot has an `obs_scale`.

    Args:
        network: the network.
        snapshot: its parameters.
        exploration: how `draw_noise` and `choose` explore; None: the head samples its own actions.
        is_noisy: whether noisy layers act with the parameter `noise` of the snapshot, or else with
            their means. None: if it has an `exploration`.
        device: device of networks that act through torch. Perceptrons always act through NumPy.
        forward: a forward pass with its own parameters, such as a `LearnerForward`; None: the
            network acts with the snapshot's parameters.

    Attributes:
        has_value: whether there is a value function.
        has_last_value: whether `last_value` returns the value after `head` and `draw`, since one
            forward pass of a torch module computes both.
        snapshot: the last snapshot. Its parameters may have changed in place since then.
        version: number of learning iterations behind the snapshot.
        obs_scale: scale of the snapshot; None: observations are not scaled.
    """

    def __init__(
        self,
        network: Network,
        snapshot: PolicySnapshot,
        *,
        exploration: Exploration | None = None,
        is_noisy: bool | None = None,
        device: str = "cpu",
        forward: TorchForward | None = None,
    ) -> None:
        self.network = network
        self.exploration = exploration
        self.has_value = network.has_value
        self._head = network.head
        if exploration is not None:
            check_storable(exploration, kind="exploration")
            exploration.check(self._head)
        self.has_last_value = network.has_value and not network.acts_without_torch
        self._forward = self._make_forward(device) if forward is None else forward
        self._has_external_forward = forward is not None
        self._is_masked = network.action_spec.is_masked
        has_noise = exploration is not None if is_noisy is None else is_noisy
        self._is_noisy = has_noise and network.noisy_std is not None
        self._load(snapshot)

    def _make_forward(self, device: str) -> NumpyForward | TorchForward:
        layers = self.network.layers.numpy_layers
        if layers is not None:
            return NumpyForward(layers)
        # Imported only for networks that need torch.
        from hotloop.policies.torch_acting import ModuleForward

        return ModuleForward(self.network, device)

    @property
    def needs_parameters(self) -> bool:
        """Whether new parameters arrive only through `load` and `refresh`.

        False if it reads the learner's own parameters, which may be newer than its snapshot.
        """
        return not self._has_external_forward or bool(self._head_params)

    def on_host(self) -> ActingPolicy:
        """Return a policy that acts on the CPU with the snapshot, without noise in its layers.

        It may be this policy.
        """
        if not (self._has_external_forward or self._is_noisy):
            return self
        return ActingPolicy(
            self.network, self.snapshot, exploration=self.exploration, is_noisy=False
        )

    def check_importable(self) -> None:
        """Raise `ConfigError` if workers can't import the head or the exploration."""
        check_importable(self._head, kind="head")
        if self.exploration is not None:
            check_importable(self.exploration, kind="exploration")

    @property
    def memory_size(self) -> int:
        """Return M, the size of the hidden state; 0 if the network is not recurrent."""
        return self.network.memory_size

    def load(self, snapshot: PolicySnapshot) -> None:
        """Replace the parameters. Perceptrons use the arrays of the snapshot without a copy.

        If the arrays are those of the last snapshot, with new contents, this is a `refresh`.

        Raises:
            CheckpointError: a parameter or the scale is missing or has another shape or dtype.
        """
        if snapshot.params is self.snapshot.params and snapshot.obs_scale is self.obs_scale is None:
            self.refresh(snapshot.version)
        else:
            self._load(snapshot)

    def _load(self, snapshot: PolicySnapshot) -> None:
        """Check the parameters of a snapshot, and act with them from now on."""
        for name, shape in self.network.parameter_shapes().items():
            array = snapshot.params.get(name)
            got = None if array is None else array.shape
            if got != shape:
                raise CheckpointError(
                    f"the policy's parameter `{name}` must have shape {shape}, got {got}: these "
                    "parameters belong to another environment or another network"
                )
            if array is not None and array.dtype.kind != "f":
                raise CheckpointError(
                    f"the policy's parameter `{name}` must have floats, got {array.dtype}: choose "
                    "another checkpoint"
                )
        scale, obs_shape = snapshot.obs_scale, self.network.obs_spec.shape
        if scale is not None and scale.mean.shape != obs_shape:
            raise CheckpointError(
                f"the policy's `obs_scale` must have shape {obs_shape}, got {scale.mean.shape}: it "
                "belongs to another environment"
            )
        self.snapshot, self.version = snapshot, snapshot.version
        self.obs_scale = scale
        self._scaled = np.empty(0, np.float32)
        self._folded_params = self._fold(snapshot.params)
        self._forward.load(replace(snapshot, params=self._folded_params))
        self._head_params = self._head.acting_params(snapshot.params)

    def refresh(self, version: int) -> None:
        """Read the loaded parameters again after they changed in place."""
        self.version = version
        if not self.needs_parameters:
            return
        folded = self._fold(self.snapshot.params)
        for name, array in self._folded_params.items():
            if array is not folded[name]:  # computed by the head
                np.copyto(array, folded[name])
        self._forward.refresh()
        self._head_params = self._head.acting_params(self.snapshot.params)

    def _fold(self, params: dict[str, Array]) -> dict[str, Any]:
        return self.network.fold(params, params[NOISE] if self._is_noisy else None)

    def draw_noise(self, seed: Any, **block: Any) -> Any:
        """Return the noise of many steps, by (seed, step, environment): float32, (T, N, K).

        Args:
            seed: seed of the run, or its `device_seed`.
            **block: `first_step`, `num_steps`, `num_envs`, `first_env`, see `ops.noise`.
        """
        if self.exploration is None:
            return self._head.draw_noise(seed, **block)
        return self.exploration.draw_noise(self._head, seed, **block)

    def scaled(self, obs: Array, out: Array | None = None) -> Array:
        """Return the network's inputs for raw observations. Training uses the same inputs.

        Args:
            obs: (…, *obs_shape), any leading axes.
            out: the same shape, written in place and returned.

        Returns:
            float32, (…, *obs_shape): scaled if there is a scale. Without a scale, bytes stay bytes
            for a user's module, and the result may be `obs` itself.
        """
        if self.obs_scale is not None:
            return self.obs_scale.apply(obs, out)
        if out is None:
            return obs.astype(self._forward.obs_dtype, copy=False)
        np.copyto(out, obs, casting="same_kind")
        return out

    def head(self, obs: Array, out: Array | None = None, memory: Array | None = None) -> Array:
        """Return the outputs of the network, such as logits or means, including forbidden actions.

        Args:
            obs: (B, *obs_shape).
            out: float32, (B, H), contiguous; written in place and returned.
            memory: hidden state of a recurrent policy, float32, (B, M); changed in place.
        """
        if self.obs_scale is not None:
            obs = self._scale_batch(obs)
        return self._forward.head(obs, out, memory)

    def value(self, obs: Array, memory: Array | None = None) -> Array:
        """Return V(obs): float32, (B,), from `obs` of (B, *obs_shape).

        Args:
            memory: hidden state of a recurrent policy, float32, (B, M); not changed.
        """
        if self.obs_scale is not None:
            obs = self.obs_scale.apply(obs)
        return self._forward.value(obs, None if memory is None else memory.copy())

    def value_from_memory(self, memory: Array) -> Array:
        """Return V, (B,), from the hidden state after a step, if `has_last_value` is False."""
        assert isinstance(self._forward, NumpyForward)
        assert self.network.layers.recurrent_layer is not None
        output = memory[:, : self.network.layers.recurrent_layer.num_units]
        return self._forward.value_of_output(np.ascontiguousarray(output))

    def last_value(self) -> Array:
        """Return V of the last step, float32, (B,). Requires `has_last_value`."""
        assert not isinstance(self._forward, NumpyForward)
        assert self._forward.last_value is not None
        return self._forward.last_value

    def head_and_value(
        self, obs: Array, out: Array | None, memory: Array | None
    ) -> tuple[Array, Array | None]:
        """Return `head` and V(obs), float32, (B,), or None without a value function."""
        head = self.head(obs, out, memory)
        if self.has_last_value:
            return head, self.last_value()
        if memory is not None and self.has_value:
            return head, self.value_from_memory(memory)
        return head, self.value(obs) if self.has_value else None

    def needs_head(self, noise: Array) -> bool:
        """Return whether `choose` reads `head` with the `noise` of one step, (B, K)."""
        return self.exploration is None or self.exploration.is_needed(self._head, noise)

    def choose(self, head: Array, noise: Array, out: Array, mask: Array | None = None) -> None:
        """Write actions into `out`, (B, *action_shape), from `head`, (B, H), and `noise`, (B, K).

        All rows belong to one step, so the first row shows whether they explore. A policy with
        action masks needs `mask`, the allowed actions, bool, (B, M). `head` becomes `MASKED` where
        an action is forbidden.
        """
        if self._is_masked:
            self._forbid(head, mask)
        if self.exploration is None:
            self._head.choose(head, noise, out, self._head_params)
        else:
            self.exploration.choose(self._head, head, noise, out, self._head_params)

    def draw(
        self,
        obs: Array,
        noise: Array,
        head: Array,
        out: Array,
        memory: Array | None = None,
        mask: Array | None = None,
    ) -> None:
        """Compute `head`, unless the noise decides the actions alone, and then `choose`."""
        if memory is not None or self.needs_head(noise):
            self.head(obs, head, memory)
        self.choose(head, noise, out, mask)

    def greedy(self, obs: Array, memory: Array | None = None, mask: Array | None = None) -> Array:
        """Return the most probable actions, (B, *action_shape), from `obs` of (B, *obs_shape).

        The hidden state of a recurrent policy, `memory`, float32, (B, M), changes in place. For
        `mask`, see `choose`.
        """
        spec = self.network.action_spec
        action = np.empty((len(obs), *spec.shape), spec.dtype)
        head = self.head(obs, None, memory)
        self._forbid(head, mask)
        self._head.greedy(head, action)
        return action

    def sample(
        self,
        obs: Array,
        rng: np.random.Generator,
        memory: Array | None = None,
        mask: Array | None = None,
    ) -> Array:
        """Return actions, (B, *action_shape), sampled by the head alone. See `greedy`."""
        spec = self.network.action_spec
        action = np.empty((len(obs), *spec.shape), spec.dtype)
        head = self.head(obs, None, memory)
        self._forbid(head, mask)
        noise = self._head.draw_from(rng, head.shape)
        self._head.choose(head, noise, action, self._head_params)
        return action

    def _forbid(self, head: Array, mask: Array | None) -> None:
        if self._is_masked:
            assert mask is not None
            self._head.forbid_array(head, mask)

    def new_memory(self, num_envs: int) -> Array | None:
        """Return the hidden state at the start of an episode: zeros, float32, (B, M).

        None: this policy is not recurrent.
        """
        return np.zeros((num_envs, self.memory_size), np.float32) if self.memory_size else None

    def log_prob(self, head: Array, noise: Array, action: Array) -> Array:
        """Return log π(action) of a whole fragment, which costs less than one call for each step.

        Args:
            head: float32, (T, N, H), outputs of `head` at the time of acting.
            noise: float32, (T, N, K), the noise of the actions.
            action: (T, N, *action_shape).

        Returns:
            float32, (T, N).

        Raises:
            ConfigError: this head computes no log-probabilities.
        """
        return self._head.log_prob(head, noise, action, self._head_params)

    def _scale_batch(self, obs: Array) -> Array:
        """Return scaled observations, in an array that the next batch of this size overwrites."""
        assert self.obs_scale is not None
        if self._scaled.shape != obs.shape:
            self._scaled = np.empty(obs.shape, np.float32)
        return self.obs_scale.apply(obs, self._scaled)
