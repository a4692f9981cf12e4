"""Proximal policy optimization (PPO).

Schulman et al. 2017, "Proximal Policy Optimization Algorithms", arXiv:1707.06347, with those of
"The 37 Implementation Details of Proximal Policy Optimization" (Huang et al. 2022) that concern
perceptrons: side-by-side environments, orthogonal initialisation, Adam's ε of 1e-5, annealed
learning rate, generalized advantages, minibatches, normalised advantages, clipped surrogate,
optional clipped value loss, entropy bonus, global gradient clipping, separate networks, a Gaussian
whose standard deviation does not depend on the state. One habit of most implementations is not
followed: truncation is not taken for termination (`hotloop.ops.gae`).

    from hotloop.algorithms import ppo
    result = ppo.train(ppo.Config(env_id="CartPole-v1", total_timesteps=100_000))
    action = result.policy.act(obs)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hotloop.algorithms.session import Collecting, Session, Specs, open_session
from hotloop.envs import environment_name
from hotloop.errors import ConfigError, NonFiniteUpdate
from hotloop.learner import (
    AdamState,
    Compile,
    Execution,
    Normalizer,
    ParameterLayout,
    adam_step,
    choose,
    clip_grad_norm,
    value_and_grad,
)
from hotloop.ops import explained_variance, gae, losses
from hotloop.policies import (
    ActingPolicy,
    ActorCritic,
    Network,
    ObsScale,
    PolicySnapshot,
    make_network,
    networks,
)
from hotloop.rollouts import CollectionOptions, RolloutState, environment_weights, to_batch
from hotloop.runs import Checkpoint, OnReport, Result, RunConfig, check_fields
from hotloop.timing import span
from hotloop.types import Array

METRICS = (
    "policy_loss",
    "value_loss",
    "entropy",
    "approx_kl",
    "clip_fraction",
    "grad_norm",
)
KL = METRICS.index("approx_kl")


@dataclass(frozen=True, kw_only=True)
class Config(RunConfig):
    """What a PPO run is made of."""

    num_steps: int = 128
    """T, steps of each environment between two updates."""
    update_epochs: int = 10
    """Passes over each fragment."""
    num_minibatches: int = 4
    """Minibatches a pass; must divide num_envs × num_steps."""
    learning_rate: float = 1e-3
    """Adam's α, at the start."""
    anneal_learning_rate: bool = True
    """Let the learning rate fall linearly to 0 over the run."""
    gamma: float = 0.99
    """Discount γ."""
    gae_lambda: float = 0.95
    """λ of the generalized advantages."""
    clip_range: float = 0.2
    """ε of the clipped surrogate."""
    clip_value_loss: bool = False
    """Clip the value's change by ε too."""
    normalize_advantages: bool = True
    """Give each minibatch's advantages mean 0 and standard deviation 1."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
    value_coef: float = 0.5
    """Weight of the value loss."""
    max_grad_norm: float = 0.5
    """Bound on the gradient's Euclidean norm."""
    target_kl: float | None = None
    """Stop an iteration's updates once the approximate KL exceeds 1.5 × this; None: never."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers, of the policy's network and of the value's."""
    activation: Literal["tanh", "relu"] = "tanh"
    """After each hidden layer."""
    shared_trunk: bool = False
    """Let policy and value share the hidden layers."""
    network: str | None = None
    """A network of your own instead, `module:Class`; it acts through torch."""
    normalize_obs: bool = False
    """Give the networks observations of mean 0 and standard deviation 1, as seen so far."""
    normalize_reward: bool = False
    """Scale rewards so that returns have standard deviation 1, as seen so far."""
    clip_obs: float | None = None
    """Bound on the (normalised) observations' magnitude; None: none. 10 is usual."""
    clip_reward: float | None = None
    """Bound on the (normalised) rewards' magnitude; None: none. 10 is usual."""
    schedule: Literal["barrier", "variable"] = "barrier"
    """barrier: T steps of each environment, then an update. variable, with workers: an update as
    soon as there are as many steps in all, of each environment as many as it has made, weighted."""
    overlap: bool = False
    """With workers: collect the next fragment while learning from this one, with the policy as it
    was before."""
    compile: Compile = "auto"
    """Run the update as one compiled graph: four times as fast, after some 15 s (3 s cached)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(
            self,
            counts=("num_steps", "update_epochs", "num_minibatches"),
            positive=(
                *("learning_rate", "clip_range", "max_grad_norm", "target_kl"),
                *("clip_obs", "clip_reward"),
            ),
            not_negative=("entropy_coef", "value_coef"),
            fractions=("gamma", "gae_lambda"),
        )
        layers = (tuple(self.hidden_sizes), self.activation, self.shared_trunk)
        if self.network is not None and layers != ((64, 64), "tanh", False):
            raise ConfigError(
                f"`network` ({self.network}) has layers of its own: leave `hidden_sizes`, "
                "`activation` and `shared_trunk` out, or leave `network` out"
            )
        if self.batch_size % self.num_minibatches:
            divisors = (n for n in range(1, self.batch_size + 1) if self.batch_size % n == 0)
            near = min(divisors, key=lambda n: abs(n - self.num_minibatches))
            raise ConfigError(
                f"`num_minibatches` must divide num_envs × num_steps = {self.num_envs} × "
                f"{self.num_steps} = {self.batch_size}, got {self.num_minibatches}: "
                f"{near} does"
            )
        if self.schedule not in ("barrier", "variable"):
            raise ConfigError(
                f"`schedule` must be 'barrier' or 'variable', got {self.schedule!r}: 'async' is "
                "for algorithms that learn from replay"
            )
        if not self.has_workers and (self.schedule != "barrier" or self.overlap):
            what = "`overlap`" if self.overlap else "`schedule` 'variable'"
            raise ConfigError(f"{what} needs workers of their own: set `workers` too")
        if self.minibatch_size < 2 and self.normalize_advantages:
            raise ConfigError(
                f"minibatches of {self.minibatch_size} have no standard deviation: lower "
                "`num_minibatches`, or turn `normalize_advantages` off"
            )

    @property
    def batch_size(self) -> int:
        """Transitions in one fragment, T × N."""
        return self.num_steps * self.num_envs

    @property
    def minibatch_size(self) -> int:
        """B, transitions in one gradient step."""
        return self.batch_size // self.num_minibatches

    @property
    def num_updates(self) -> int:
        """Gradient steps in the whole run."""
        num_iterations = -(-self.total_timesteps // self.batch_size)
        return num_iterations * self.update_epochs * self.num_minibatches

    def plan(self) -> CollectionOptions:
        """How fragments are collected."""
        return CollectionOptions(
            num_steps=self.num_steps,
            seed=self.seed,
            schedule=self.schedule,
            overlap=self.overlap,
        )


class Batch(NamedTuple):
    """Transitions that one gradient step learns from, or a whole fragment of them.

    Attributes:
        obs: (B, *obs_shape).
        action: (B, *action_shape).
        log_prob: float32, (B,), under the policy that acted.
        value: float32, (B,), likewise.
        advantages: float32, (B,).
        returns: float32, (B,), the value's targets.
        weight: float32, (B,), how much each counts, 1 on average; None: all the same.
    """

    obs: Tensor
    action: Tensor
    log_prob: Tensor
    value: Tensor
    advantages: Tensor
    returns: Tensor
    weight: Tensor | None = None


@dataclass(slots=True)
class State:
    """What learning changes, in place.

    Attributes:
        params: float32, (P,), all parameters of both networks.
        adam: the optimizer's memory.
        active: bool, 0-d; False once the target KL was exceeded, until the next iteration.
    """

    params: Tensor
    adam: AdamState
    active: Tensor


def loss(
    params: Tensor, batch: Batch, network: Network, layout: ParameterLayout, config: Config
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """PPO's objective, as a loss: L = L_policy + c_v L_value − c_e H.

    Schulman et al. 2017, arXiv:1707.06347, eq. 9.

    Args:
        params: float32, (P,).
        batch: B transitions.
        network: which networks.
        layout: where their parameters stand.
        config: coefficients; read as constants.

    Returns:
        The loss, 0-d, and its parts, 0-d each: policy loss, value loss, entropy, approximate KL,
        fraction of ratios clipped.
    """
    named = layout.unpack(params)
    head, value = networks.forward(network, named, batch.obs)
    log_prob, entropy = networks.log_prob_and_entropy(network, named, head, batch.action)
    log_ratio = log_prob - batch.log_prob
    ratio = log_ratio.exp()

    advantages, weight = batch.advantages, batch.weight
    if config.normalize_advantages:
        mean, std = losses.moments(advantages, weight)
        advantages = (advantages - mean) / (std + 1e-8)

    policy_loss = losses.clipped_policy_loss(ratio, advantages, config.clip_range, weight)
    if config.clip_value_loss:
        value_loss = losses.clipped_value_loss(
            value, batch.value, batch.returns, config.clip_range, weight
        )
    else:
        value_loss = losses.value_loss(value, batch.returns, weight)
    mean_entropy = losses.mean(entropy, weight)
    total = policy_loss + config.value_coef * value_loss - config.entropy_coef * mean_entropy

    with torch.no_grad():
        approx_kl = losses.approximate_kl(log_ratio)
        clip_fraction = ((ratio - 1.0).abs() > config.clip_range).to(torch.float32).mean()
    return total, (policy_loss, value_loss, mean_entropy, approx_kl, clip_fraction)


def update(
    state: State,
    batch: Batch,
    learning_rate: Tensor,
    *,
    network: Network,
    layout: ParameterLayout,
    config: Config,
) -> Tensor:
    """One gradient step on one minibatch; `state` changes in place.

    Args:
        state: parameters and optimizer.
        batch: B transitions.
        learning_rate: 0-d.
        network: which networks.
        layout: where their parameters stand.
        config: read as constants.

    Returns:
        `METRICS`, float32, (6,); nothing is copied to the host.
    """
    _, parts, grad = value_and_grad(loss, state.params, batch, network, layout, config)
    grad, norm = clip_grad_norm(grad, config.max_grad_norm)
    active = None
    if config.target_kl is not None:
        # Decided where the tensors are: a minibatch too far off changes nothing, nor do later ones.
        state.active.logical_and_(parts[3] <= 1.5 * config.target_kl)
        active = state.active
    adam_step(state.params, grad, state.adam, learning_rate=learning_rate, eps=1e-5, active=active)
    return torch.stack([*(part.detach() for part in parts), norm])


class Learner:
    """The owner of all that learning changes.

    Args:
        config: the run's.
        network: what is learned.

    Attributes:
        state: parameters and optimizer.
        rng: orders the minibatches.
        step: `update`, eager or compiled.
    """

    def __init__(self, config: Config, network: Network) -> None:
        self.config = config
        self.layout = ParameterLayout(network.parameter_shapes())
        params = self.layout.pack(network.initial_parameters(config.seed))
        self.state = State(params, AdamState.zeros(params), torch.ones((), dtype=torch.bool))
        self.rng = np.random.default_rng((config.seed, 1))
        self.learning_rate = torch.tensor(config.learning_rate, dtype=torch.float32)
        choice = choose(
            config.compile,
            num_calls=config.num_updates,
            flop_per_call=6 * params.numel() * config.minibatch_size,
        )
        self.step = Execution(
            partial(update, network=network, layout=self.layout, config=config), choice
        )

    def snapshot(self, version: int, obs_scale: ObsScale | None) -> PolicySnapshot:
        """The policy as it is now."""
        params = self.layout.to_numpy(self.state.params)
        return PolicySnapshot(version=version, params=params, obs_scale=obs_scale)

    def set_learning_rate(self, done_share: float) -> None:
        """α for an iteration that begins when this share of the run is done."""
        if self.config.anneal_learning_rate:
            self.learning_rate.fill_(self.config.learning_rate * (1.0 - done_share))

    def learn(self, fields: Mapping[str, Array]) -> dict[str, float]:
        """All epochs on one fragment.

        Args:
            fields: of `Batch`, T·N rows each.

        Returns:
            `METRICS`, each the mean over the minibatches whose step counted; `num_updates`, how
            many did; `learning_rate`.

        Raises:
            NonFiniteUpdate: a loss or a parameter was NaN or infinite.
        """
        config, state = self.config, self.state
        batch = Batch(**{name: torch.from_numpy(x) for name, x in fields.items()})
        state.active.fill_(True)
        metrics: list[Tensor] = []
        counted: list[Tensor] = []
        orders: list[Tensor] = []
        for _ in range(config.update_epochs):
            # One gather a pass; its minibatches are then views.
            orders.append(torch.from_numpy(self.rng.permutation(config.batch_size)))
            passes = (
                x.index_select(0, orders[-1]).split(config.minibatch_size)
                for x in batch
                if x is not None
            )
            for minibatch in zip(*passes, strict=True):
                with span("minibatch"):
                    metrics.append(self.step(state, Batch(*minibatch), self.learning_rate))
                if config.target_kl is not None:
                    counted.append(state.active.clone())
            # The one synchronisation of a pass, and only where a target is set.
            if config.target_kl is not None and not state.active.item():
                break
        rows = torch.stack(metrics)
        # A minibatch too far off may have an infinite loss, and changed nothing; but not a NaN.
        taken = torch.stack(counted) if counted else torch.ones(len(rows), dtype=torch.bool)
        bad = torch.where(taken[:, None], ~rows.isfinite(), rows[:, KL].isnan()[:, None])
        if (bad.any() | ~state.params.isfinite().all()).item():
            raise self._non_finite(bad, batch, torch.cat(orders))
        rows = rows[taken]
        means = dict(zip(METRICS, rows.mean(0).tolist(), strict=True))
        return {
            **means,
            "num_updates": float(len(rows)),
            "learning_rate": self.learning_rate.item(),
        }

    def _non_finite(self, bad: Tensor, batch: Batch, order: Tensor) -> NonFiniteUpdate:
        """Find the first update that was not finite: the last one, if no loss has seen it yet."""
        update = int(bad.any(1).int().argmax()) if bad.any() else len(bad) - 1
        names = [name for name, is_bad in zip(METRICS, bad[update], strict=True) if is_bad]
        size = self.config.minibatch_size
        index = order[update * size : (update + 1) * size]
        fields = batch._asdict().items()
        minibatch = {name: x[index].numpy() for name, x in fields if x is not None}
        return NonFiniteUpdate(names or ["the parameters"], update + 1, minibatch)

    def load(self, checkpoint: Checkpoint, arrays: Mapping[str, Array]) -> None:
        """Go on from a checkpoint and its arrays."""
        self.state.params.copy_(self.layout.pack(checkpoint.snapshot.params))
        self.state.adam.load(arrays)
        self.rng.bit_generator.state = checkpoint.state["rng"]


def train(
    config: Config,
    *,
    env: str | Callable[..., Any] | None = None,
    network: str | Callable[..., Any] | None = None,
    on_report: OnReport | None = None,
    resume_from: str | Path | None = None,
) -> Result:
    """Train, and leave a run directory behind.

    Args:
        config: what to do.
        env: a factory of environments, called with `config.env_kwargs`; used instead of
            `config.env_id`.
        network: a factory of the policy's and the value's network, see
            `hotloop.policies.make_network`; used instead of `config.network`.
        on_report: called before the first iteration and after each; returning True stops the run.
        resume_from: a run directory, or a checkpoint in one, to go on from. The rest is as it was,
            but for `total_timesteps`, which may grow, and what changes nothing that is learned.

    Returns:
        The policy and where everything was written.

    Raises:
        ConfigError, UnknownNameError, SpaceError, MissingExtraError: before anything starts.
        CheckpointError: the checkpoint to go on from is damaged or of another run.
        EnvironmentFailure: an environment raised or gave what its spaces rule out.
        NonFiniteError: a loss was NaN or infinite.
        KeyboardInterrupt: after metrics, timing and the last checkpoint were written.

    The process's timing goes to the run directory from here to the end; a recording that the caller
    started ends, and `timing.start` begins a new one afterwards.
    """
    network = config.network if network is None else network
    with open_session(
        config,
        algorithm="ppo",
        env=env,
        network_name=None if network is None else environment_name(network),
        on_report=on_report,
        resume_from=resume_from,
        collecting=lambda config: Collecting(
            plan=config.plan(),
            make_network=lambda envs: _make_network(config, envs, network),
            uneven="variable",
        ),
    ) as session:
        config = session.chosen(config)
        return _train(config, session, _make_network(config, session.envs, network))


def _make_network(config: Config, envs: Specs, network: str | Callable[..., Any] | None) -> Network:
    if network is not None:
        return make_network(network, envs.obs_spec, envs.action_spec)
    return ActorCritic(
        obs_spec=envs.obs_spec,
        action_spec=envs.action_spec,
        hidden_sizes=tuple(config.hidden_sizes),
        activation=config.activation,
        shared_trunk=config.shared_trunk,
    )


def _train(config: Config, session: Session, network: Network) -> Result:
    with span("make_learner"):
        learner = Learner(config, network)
        normalizer = Normalizer(
            network.obs_spec.shape,
            session.envs.num_envs,
            normalize_obs=config.normalize_obs,
            normalize_reward=config.normalize_reward,
            clip_obs=config.clip_obs,
            clip_reward=config.clip_reward,
            gamma=config.gamma,
        )
        policy = ActingPolicy(network, learner.snapshot(0, normalizer.obs_scale))
        rollout = session.rollout(policy, config.plan())
    session.check_network(network)
    described = network.to_json()
    iteration, restarted_envs = 0, []
    if session.resumed_from is not None:
        resumed, arrays = session.resumed_from, session.resumed_from.arrays()
        iteration = resumed.state["iteration"]
        learner.load(resumed, arrays)
        normalizer.load(arrays)
        rollout.publish(resumed.snapshot)
        restarted_envs = rollout.restore(arrays, resumed.state["rollout"])
        normalizer.restart(restarted_envs)

    wants_to_stop = session.begin(
        execution=learner.step.choice.reason, restarted_envs=restarted_envs
    )
    while not wants_to_stop and rollout.num_transitions < config.total_timesteps:
        iteration += 1
        learner.set_learning_rate(rollout.num_transitions / config.total_timesteps)
        with span("collect"):
            fragments = rollout.collect()
        with span("advantages"):
            # Observations as the policy saw them; rewards by all that is known by now.
            for fragment in fragments:
                normalizer.update(fragment)
            advantages = [
                gae(
                    normalizer.reward(fragment.reward),
                    fragment.value,
                    fragment.next_value,
                    fragment.terminated,
                    fragment.truncated,
                    gamma=config.gamma,
                    gae_lambda=config.gae_lambda,
                )
                for fragment in fragments
            ]
            fields = to_batch(fragments, advantages, learner.rng)
            fields["obs"] = policy.scaled(fields["obs"])
            if config.schedule == "variable":
                fields["weight"] = environment_weights(fragments)
        with span("update"):
            metrics = learner.learn(fields)
        metrics["explained_variance"] = explained_variance(fields["value"], fields["returns"])
        with span("publish"):
            snapshot = learner.snapshot(iteration, normalizer.obs_scale)
            rollout.publish(snapshot)
            state = rollout.state()
            checkpoint = Checkpoint(
                network=described,
                snapshot=snapshot,
                arrays=partial(
                    _arrays, learner.state.adam.to_arrays(), normalizer.to_arrays(), state
                ),
                state={
                    "timesteps": state.num_transitions,
                    "iteration": iteration,
                    "rng": learner.rng.bit_generator.state,
                    "rollout": state.to_json(),
                },
            )
        wants_to_stop = session.end_iteration(checkpoint, rollout.pop_episodes(), metrics)
    return session.result(policy, [learner.step], is_stopped=wants_to_stop)


def _arrays(
    learner: Mapping[str, Array], normalizer: Mapping[str, Array], rollout: RolloutState
) -> dict[str, Array]:
    """What a checkpoint holds; only put together if it is saved."""
    return {**learner, **normalizer, **rollout.to_arrays()}
