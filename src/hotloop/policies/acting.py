"""Acting with published parameters: drawing actions, and what they were worth.

Perceptrons act on NumPy alone (`perceptrons`), a user's module through torch (`modules`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from hotloop.errors import CheckpointError, ShapeError
from hotloop.ops.noise import counter_normal, counter_uniform
from hotloop.policies.actor_critic import ActorCritic
from hotloop.policies.perceptrons import Perceptrons
from hotloop.policies.protocol import Network
from hotloop.policies.snapshot import ObsScale, PolicySnapshot
from hotloop.types import Array

if TYPE_CHECKING:
    from hotloop.policies.modules import ModuleForward

_LOG_SQRT_2PI = np.float32(0.5 * math.log(2.0 * math.pi))


class ActingPolicy:
    """A network that acts.

    Actions are drawn from noise that the caller passes in (`noise`), so that who acts, and in which
    process, changes nothing. `head` is what the policy's network gives: logits or means, (…, H).
    All observations are raw: where the snapshot has an `obs_scale`, they are scaled in here.

    Attributes:
        network: what acts.
        version: the snapshot's, the number of iterations that it has learned from.
        obs_scale: the snapshot's; None: observations go in as they are.
    """

    def __init__(self, network: Network, snapshot: PolicySnapshot) -> None:
        self.network = network
        self._forward = _make_forward(network)
        spec = network.action_spec
        self._is_continuous = network.is_continuous
        self._segments = np.cumsum((0, *spec.nvec)) if spec.kind == "multi_discrete" else None
        # What turns a drawn action into the environment's.
        self._starts = np.asarray(spec.starts or 0 if spec.kind == "multi_discrete" else spec.start)
        if spec.kind == "box":
            self._low, self._high = (
                np.asarray(bound, np.float32).reshape(spec.shape) for bound in (spec.low, spec.high)
            )
        self._rng = np.random.default_rng(0)
        self.load(snapshot)

    def load(self, snapshot: PolicySnapshot) -> None:
        """Act with these parameters from now on; perceptrons do not copy them.

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
        self.version = snapshot.version
        self.obs_scale = scale
        self._tiled_scale: ObsScale | None = None
        self._forward.load(snapshot)
        if self._is_continuous:
            self._log_std = snapshot.params["policy.log_std"]
            self._std = np.exp(self._log_std)

    # --- the rollout's side: no checks, nothing allocated but what NumPy needs -------------------

    def draw_noise(self, seed: int, *, first_step: int, num_steps: int, num_envs: int) -> Array:
        """What turns `head` into an action, for a whole fragment.

        Gumbel noise for discrete actions (the argmax of logits + noise is a draw from their
        softmax), standard normal noise for continuous ones: functions of (seed, step, environment).

        Returns:
            float32, (T, N, H).
        """
        size = self.network.head_size
        counters = {"first_step": first_step, "num_steps": num_steps, "num_envs": num_envs}
        if self._is_continuous:
            return counter_normal(seed, size=size, **counters)
        uniform = counter_uniform(seed, size=size, **counters)
        return (-np.log(-np.log(uniform))).astype(np.float32)

    def scaled(self, obs: Array, out: Array | None = None) -> Array:
        """What the network sees of raw observations, and is to be trained on.

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

    def head(self, obs: Array, out: Array | None = None) -> Array:
        """Logits or means.

        Args:
            obs: (B, *obs_shape).
            out: float32, (B, H), contiguous; written in place and returned.
        """
        if self.obs_scale is not None:
            obs = self._scale(obs)
        return self._forward.head(obs, out)

    def value(self, obs: Array) -> Array:
        """V(obs): float32, (B,), from `obs` of (B, *obs_shape)."""
        if self.obs_scale is not None:
            obs = self._scale(obs)
        return self._forward.value(obs)

    def choose(self, head: Array, noise: Array, out: Array) -> None:
        """Draw actions into `out`, (B, *action_shape), from `head` and `noise`, both (B, H)."""
        if self._is_continuous:
            flat = out.reshape(head.shape)  # a view: `out` is one step of a fragment
            np.multiply(noise, self._std, out=flat)
            np.add(flat, head, out=flat)
        elif self._segments is None:
            (head + noise).argmax(axis=1, out=out)
        else:
            perturbed = head + noise
            for k in range(len(self._segments) - 1):
                part = perturbed[:, self._segments[k] : self._segments[k + 1]]
                out[:, k] = part.argmax(axis=1)

    def greedy(self, obs: Array) -> Array:
        """The most probable actions: (B, *action_shape), from `obs` of (B, *obs_shape)."""
        spec = self.network.action_spec
        head = self.head(obs)
        action = np.empty((len(obs), *spec.shape), spec.dtype)
        self.choose(head, np.zeros_like(head), action)
        return action

    def log_prob(self, head: Array, noise: Array, action: Array) -> Array:
        """log π(action) for a whole fragment at once: cheaper than at each step.

        Args:
            head: float32, (T, N, H), as `head` gave it when the actions were drawn.
            noise: float32, (T, N, H), that they were drawn with.
            action: (T, N, *action_shape).

        Returns:
            float32, (T, N).
        """
        if self._is_continuous:
            # The noise is the standardised action.
            per_dimension = 0.5 * np.square(noise) + (self._log_std + _LOG_SQRT_2PI)
            return -per_dimension.sum(axis=-1, dtype=np.float32)
        if self._segments is None:
            return _categorical_log_prob(head, action)
        total = np.zeros(head.shape[:-1], np.float32)
        for k in range(len(self._segments) - 1):
            part = head[..., self._segments[k] : self._segments[k + 1]]
            total += _categorical_log_prob(part, action[..., k])
        return total

    # --- the user's side ------------------------------------------------------------------------

    def act(
        self,
        obs: Array,
        *,
        deterministic: bool = True,
        rng: np.random.Generator | None = None,
    ) -> Array:
        """Actions for the environment: `env.step(policy.act(obs))`.

        Args:
            obs: one observation, `obs_shape`, or a batch, (B, *obs_shape). Where the environment's
                is a dict, a tuple or discrete: the vector that `make_vec` makes of it.
            deterministic: take the most probable action (the mean); else draw one.
            rng: to draw with; by default the policy's own, seeded with 0.

        Returns:
            One action or a batch of them, box actions clipped to their bounds.

        Raises:
            ShapeError: `obs` is neither one observation nor a batch of them.
        """
        obs = np.asarray(obs)
        shape = self.network.obs_spec.shape
        is_single = obs.shape == shape
        if not is_single and obs.shape[1:] != shape:
            raise ShapeError(
                f"`obs` must have shape {shape} or (B, {', '.join(map(str, shape))}), "
                f"got {obs.shape}"
            )
        batch = obs[None] if is_single else obs
        spec = self.network.action_spec
        if deterministic:
            action = self.greedy(batch)
        else:
            rng = rng or self._rng
            head = self.head(batch)
            if self._is_continuous:
                noise = rng.standard_normal(head.shape, np.float32)
            else:
                noise = rng.gumbel(size=head.shape).astype(np.float32)
            action = np.empty((len(batch), *spec.shape), spec.dtype)
            self.choose(head, noise, action)
        if self._is_continuous:
            np.clip(action, self._low, self._high, out=action)
        else:
            action += self._starts
        return action[0] if is_single else action

    def _scale(self, obs: Array) -> Array:
        """Scaled observations, in memory that is kept for the next batch of this size."""
        assert self.obs_scale is not None
        if self._tiled_scale is None or self._tiled_scale.mean.shape != obs.shape:
            self._tiled_scale = self.obs_scale.tiled(len(obs))
            self._scaled = np.empty(obs.shape, np.float32)
        return self._tiled_scale.apply(obs, self._scaled)


def _make_forward(network: Network) -> Perceptrons | ModuleForward:
    if isinstance(network, ActorCritic):
        return Perceptrons(network)
    # Torch is imported only for those who brought it along.
    from hotloop.policies.modules import ModuleActorCritic, ModuleForward

    assert isinstance(network, ModuleActorCritic)
    return ModuleForward(network)


def _categorical_log_prob(logits: Array, action: Array) -> Array:
    """log softmax(logits)[action]: (…,), from (…, A) and (…,)."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    log_sum = np.log(np.exp(shifted).sum(axis=-1))
    chosen = np.take_along_axis(shifted, action[..., None], axis=-1)[..., 0]
    return chosen - log_sum
