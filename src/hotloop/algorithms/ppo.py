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

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hotloop import timing
from hotloop.envs import VectorEnv, environment_name, make_vec
from hotloop.errors import ConfigError, NonFiniteError
from hotloop.learner import (
    AdamState,
    Compile,
    Execution,
    ParameterLayout,
    adam_step,
    choose,
    clip_grad_norm,
    torch_threads,
    value_and_grad,
)
from hotloop.ops import explained_variance, gae, losses
from hotloop.policies import ActingPolicy, ActorCritic, PolicySnapshot, networks
from hotloop.rollouts import InlineRollout
from hotloop.rollouts.inline import flatten_valid
from hotloop.runs import OnReport, Progress, Result, RunDirectory, check_fields, delayed_interrupt
from hotloop.timing import span

METRICS = (
    "policy_loss",
    "value_loss",
    "entropy",
    "approx_kl",
    "clip_fraction",
    "grad_norm",
)


@dataclass(frozen=True, kw_only=True)
class Config:
    """What a PPO run is made of."""

    env_id: str = "CartPole-v1"
    """Gymnasium id, `module:Id`, `envpool:Id`, or `module:factory`."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Passed to the environment, as JSON on the command line: '{"g": 1.62}'."""
    total_timesteps: int = 200_000
    """Transitions to collect, over all environments; rounded up to whole iterations."""
    seed: int = 1
    """Of environments, networks, actions and minibatches: the same seed gives the same weights."""
    num_envs: int = 8
    """N, environments side by side."""
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
    compile: Compile = "auto"
    """Run the update as one compiled graph: three times as fast, after some 15 s (3 s cached)."""
    torch_threads: int = 1
    """Cores for the update; tiny networks are slower on two than on one."""
    runs_dir: str = "runs"
    """Where run directories are made."""
    run_dir: str | None = None
    """This run's directory, which must not exist; None: <runs-dir>/<env>__ppo__<seed>__<time>."""

    def __post_init__(self) -> None:
        check_fields(
            self,
            counts=(
                *("total_timesteps", "num_envs", "num_steps", "update_epochs", "num_minibatches"),
                "torch_threads",
            ),
            positive=("learning_rate", "clip_range", "max_grad_norm", "target_kl"),
            not_negative=("entropy_coef", "value_coef"),
            fractions=("gamma", "gae_lambda"),
        )
        if self.batch_size % self.num_minibatches:
            divisors = (n for n in range(1, self.batch_size + 1) if self.batch_size % n == 0)
            near = min(divisors, key=lambda n: abs(n - self.num_minibatches))
            raise ConfigError(
                f"`num_minibatches` must divide num_envs × num_steps = {self.num_envs} × "
                f"{self.num_steps} = {self.batch_size}, got {self.num_minibatches}: "
                f"{near} does"
            )
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


class Batch(NamedTuple):
    """Transitions that one gradient step learns from, or a whole fragment of them.

    Attributes:
        obs: (B, *obs_shape).
        action: (B, *action_shape).
        log_prob: float32, (B,), under the policy that acted.
        value: float32, (B,), likewise.
        advantages: float32, (B,).
        returns: float32, (B,), the value's targets.
    """

    obs: Tensor
    action: Tensor
    log_prob: Tensor
    value: Tensor
    advantages: Tensor
    returns: Tensor


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
    params: Tensor, batch: Batch, network: ActorCritic, layout: ParameterLayout, config: Config
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

    advantages = batch.advantages
    if config.normalize_advantages:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)

    policy_loss = losses.clipped_policy_loss(ratio, advantages, config.clip_range)
    if config.clip_value_loss:
        value_loss = losses.clipped_value_loss(value, batch.value, batch.returns, config.clip_range)
    else:
        value_loss = losses.value_loss(value, batch.returns)
    mean_entropy = entropy.mean()
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
    network: ActorCritic,
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


def train(
    config: Config,
    *,
    env: Callable[..., Any] | None = None,
    on_report: OnReport | None = None,
) -> Result:
    """Train, and leave a run directory behind.

    Args:
        config: what to do.
        env: a factory of environments, called with `config.env_kwargs`; used instead of
            `config.env_id`.
        on_report: called before the first iteration and after each; returning True stops the run.

    Returns:
        The policy and where everything was written.

    Raises:
        ConfigError, UnknownNameError, SpaceError, MissingExtraError: before anything starts.
        EnvironmentFailure: an environment raised or gave what its spaces rule out.
        NonFiniteError: a loss was NaN or infinite.
        KeyboardInterrupt: after metrics, timing and the last policy were written.

    The process's timing goes to the run directory from here to the end; a recording that the caller
    started ends, and `timing.start` begins a new one afterwards.
    """
    environment = config.env_id if env is None else env
    run = envs = None
    try:
        with delayed_interrupt():  # from here on there is something to tidy up
            run = RunDirectory.create(
                config.run_dir,
                runs_dir=config.runs_dir,
                env_id=environment_name(environment),
                algorithm="ppo",
                seed=config.seed,
                config=config,
            )
        timing.start(run.path / "timing", component="learner")
        with span("make_envs"):
            envs = make_vec(
                environment, config.num_envs, seed=config.seed, env_kwargs=config.env_kwargs
            )
        network = ActorCritic(
            obs_spec=envs.obs_spec,
            action_spec=envs.action_spec,
            hidden_sizes=tuple(config.hidden_sizes),
            activation=config.activation,
        )
        with torch_threads(config.torch_threads):
            result = _train(config, envs, network, run, on_report)
    except BaseException:
        timing.stop()
        if run is not None:
            run.close()
            if not run.has_metrics:  # it ended before its first iteration did
                run.remove()
        if envs is not None:
            with contextlib.suppress(Exception):  # what went wrong first is what should be seen
                envs.close()
        raise
    timing.stop()
    run.close()
    envs.close()
    return result


def _train(
    config: Config,
    envs: VectorEnv,
    network: ActorCritic,
    run: RunDirectory,
    on_report: OnReport | None,
) -> Result:
    with span("make_learner"):
        layout = ParameterLayout(network.parameter_shapes())
        params = layout.pack(network.initial_parameters(config.seed))
        state = State(params, AdamState.zeros(params), torch.ones((), dtype=torch.bool))
        snapshot = PolicySnapshot(version=0, params=layout.to_numpy(params))
        policy = ActingPolicy(network, snapshot)
        rollout = InlineRollout(envs, policy, num_steps=config.num_steps, seed=config.seed)
        rng = np.random.default_rng((config.seed, 1))
        learning_rate = torch.tensor(config.learning_rate)
        choice = choose(
            config.compile,
            num_calls=config.num_updates,
            flop_per_call=6 * params.numel() * config.minibatch_size,
        )
        step = Execution(partial(update, network=network, layout=layout, config=config), choice)

    learned_from = 0  # transitions that `snapshot` has learned from
    progress = Progress(run.path, config.total_timesteps, on_report, execution=choice.reason)
    wants_to_stop = progress.report(0, {})
    try:
        iteration = 0
        while not wants_to_stop and rollout.num_transitions < config.total_timesteps:
            if config.anneal_learning_rate:
                done_share = rollout.num_transitions / config.total_timesteps
                learning_rate.fill_(config.learning_rate * (1.0 - done_share))

            with span("collect"):
                fragment = rollout.collect()
            with span("advantages"):
                advantages = gae(
                    fragment.reward,
                    fragment.value,
                    fragment.next_value,
                    fragment.terminated,
                    fragment.truncated,
                    gamma=config.gamma,
                    gae_lambda=config.gae_lambda,
                )
                fields = flatten_valid(fragment, advantages, rng)
                batch = Batch(**{name: torch.from_numpy(x) for name, x in fields.items()})
            with span("update"):
                metrics = _learn(state, batch, learning_rate, step, config, rng)

            iteration += 1
            metrics["learning_rate"] = learning_rate.item()
            metrics["explained_variance"] = explained_variance(fields["value"], fields["returns"])
            bad = [name for name in METRICS if not np.isfinite(metrics[name])]
            if bad or not torch.isfinite(state.params).all().item():
                raise NonFiniteError(
                    "losses and parameters must be finite, but iteration "
                    f"{iteration} gave NaN or infinity in {', '.join(bad) or 'the parameters'}: "
                    "lower `learning_rate`, and check the scale of the rewards"
                )
            with span("publish"):
                snapshot = PolicySnapshot(version=iteration, params=layout.to_numpy(state.params))
                learned_from = rollout.num_transitions
                rollout.publish(snapshot)
            with span("report"):
                episodes = rollout.pop_episodes()
                progress.add(episodes)
                run.log(
                    {
                        "iteration": iteration,
                        "timesteps": rollout.num_transitions,
                        "elapsed_s": round(progress.elapsed_s, 6),
                        "episode_returns": [e.undiscounted_return for e in episodes],
                        "episode_lengths": [e.length for e in episodes],
                        **metrics,
                    }
                )
                wants_to_stop = progress.report(rollout.num_transitions, metrics)
    finally:
        # Also on Ctrl-C and on errors: `snapshot` is always a whole iteration's.
        with span("save"), delayed_interrupt():
            run.save_policy("last", network, snapshot, {"timesteps": learned_from})

    return Result(
        policy=policy,
        run_dir=run.path,
        timesteps=rollout.num_transitions,
        elapsed_s=progress.elapsed_s,
        mean_return=progress.mean_return,
        status="stopped" if wants_to_stop else "finished",
        execution=step.summary(),
    )


def _learn(
    state: State,
    batch: Batch,
    learning_rate: Tensor,
    step: Execution,
    config: Config,
    rng: np.random.Generator,
) -> dict[str, float]:
    """All epochs on one fragment.

    Returns:
        `METRICS`, each the mean over the minibatches whose step counted, and `num_updates`, how
        many did.
    """
    state.active.fill_(True)
    metrics: list[Tensor] = []
    counted: list[Tensor] = []
    for _ in range(config.update_epochs):
        # One gather a pass; its minibatches are then views.
        order = torch.from_numpy(rng.permutation(config.batch_size))
        shuffled = Batch(*(x.index_select(0, order) for x in batch))
        with step.repeated():
            for start in range(0, config.batch_size, config.minibatch_size):
                minibatch = Batch(*(x.narrow(0, start, config.minibatch_size) for x in shuffled))
                with span("minibatch"):
                    metrics.append(step(state, minibatch, learning_rate))
                if config.target_kl is not None:
                    counted.append(state.active.clone())
        # The one synchronisation of a pass, and only where a target is set.
        if config.target_kl is not None and not state.active.item():
            break
    rows = torch.stack(metrics)
    if counted:
        rows = rows[torch.stack(counted)]
    means = dict(zip(METRICS, rows.mean(0).tolist(), strict=True))
    return {**means, "num_updates": float(len(rows))}
