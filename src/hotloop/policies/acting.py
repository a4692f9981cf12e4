"""Acting with published parameters: drawing actions, and what they were worth.

Perceptrons act on NumPy alone (`perceptrons`), a user's module through torch (`modules`); what is
done with a network's outputs stands in `heads`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hotloop.errors import CheckpointError, ConfigError, ShapeError
from hotloop.policies.actor_critic import ActorCritic
from hotloop.policies.actors import Actor
from hotloop.policies.heads import Exploration, make_head
from hotloop.policies.perceptrons import Perceptrons
from hotloop.policies.protocol import Network
from hotloop.policies.snapshot import ObsScale, PolicySnapshot
from hotloop.types import Array

if TYPE_CHECKING:
    from hotloop.policies.modules import ModuleForward


class ActingPolicy:
    """A network that acts.

    Actions are drawn from noise that the caller passes in (`noise`), so that who acts, and in which
    process, changes nothing. `head` is what the policy's network gives: logits or means, (…, H).
    All observations are raw: where the snapshot has an `obs_scale`, they are scaled in here.

    Args:
        network: what acts.
        snapshot: its parameters.
        exploration: how an actor departs from what it thinks best in `draw_noise` and `choose`.

    Attributes:
        network: what acts.
        has_value: whether there is a value function, and log-probabilities.
        exploration: how it explores; None: not at all.
        snapshot: what it acts by; its parameters may have been changed in place since.
        version: the snapshot's, the number of iterations that it has learned from.
        obs_scale: the snapshot's; None: observations go in as they are.
    """

    def __init__(
        self,
        network: Network,
        snapshot: PolicySnapshot,
        *,
        exploration: Exploration | None = None,
    ) -> None:
        self.network = network
        self.exploration = exploration
        self.has_value = not isinstance(network, Actor)
        self._forward = _make_forward(network)
        self._head = make_head(network, exploration)
        spec = network.action_spec
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
        self.snapshot = snapshot
        self.version = snapshot.version
        self.obs_scale = scale
        self._tiled_scale: ObsScale | None = None
        self._forward.load(snapshot)
        self._head.load(snapshot.params)

    def refresh(self, version: int) -> None:
        """Act with what the loaded parameters have become, which were changed in place."""
        self.version = version
        self._forward.refresh()
        self._head.load(self.snapshot.params)

    # --- the rollout's side: no checks, nothing allocated but what NumPy needs -------------------

    def draw_noise(
        self, seed: int, *, first_step: int, num_steps: int, num_envs: int, first_env: int = 0
    ) -> Array:
        """What turns `head` into an action, for many steps, by (seed, step, environment) alone.

        Gumbel noise for discrete actions, standard normal noise for continuous ones; of an actor,
        also how it explores (`heads`).

        Returns:
            float32, (T, N, K).
        """
        return self._head.draw_noise(
            seed,
            first_step=first_step,
            num_steps=num_steps,
            num_envs=num_envs,
            first_env=first_env,
        )

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
        """V(obs): float32, (B,), from `obs` of (B, *obs_shape).

        Raises:
            ConfigError: the policy was learned without a value function.
        """
        if not self.has_value:
            raise ConfigError(
                "what learned from replay has no value function beside its policy: `head` gives "
                "all that the network says, of DQN the actions' values"
            )
        if self.obs_scale is not None:
            obs = self.obs_scale.apply(obs)
        return self._forward.value(obs)

    def choose(self, head: Array, noise: Array, out: Array) -> None:
        """Draw actions into `out`, (B, *action_shape), from `head`, (B, H), and `noise`, (B, K)."""
        self._head.choose(head, noise, out)

    def draw(self, obs: Array, noise: Array, head: Array, out: Array) -> None:
        """One step of a rollout: `head` and then `choose`, where the network is asked at all."""
        if self._head.is_needed(noise):
            self.head(obs, out=head)
        self._head.choose(head, noise, out)

    def greedy(self, obs: Array) -> Array:
        """The most probable actions: (B, *action_shape), from `obs` of (B, *obs_shape)."""
        spec = self.network.action_spec
        action = np.empty((len(obs), *spec.shape), spec.dtype)
        self._head.greedy(self.head(obs), action)
        return action

    def log_prob(self, head: Array, noise: Array, action: Array) -> Array:
        """log π(action) for a whole fragment at once: cheaper than at each step.

        Args:
            head: float32, (T, N, H), as `head` gave it when the actions were drawn.
            noise: float32, (T, N, K), that they were drawn with.
            action: (T, N, *action_shape).

        Returns:
            float32, (T, N).
        """
        if not self.has_value:
            raise ConfigError(
                "an actor that learns from replay keeps no log-probabilities: "
                "`networks.squashed_gaussian` computes those of sac"
            )
        return self._head.log_prob(head, noise, action)

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
            noise = self._head.draw_from(rng, head.shape)
            action = np.empty((len(batch), *spec.shape), spec.dtype)
            self.choose(head, noise, action)
        if spec.kind == "box":
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
    if isinstance(network, (ActorCritic, Actor)):
        return Perceptrons(network)
    # Torch is imported only for those who brought it along.
    from hotloop.policies.modules import ModuleActorCritic, ModuleForward

    assert isinstance(network, ModuleActorCritic)
    return ModuleForward(network)
