"""Soft actor-critic (SAC) for discrete actions.

Christodoulou 2019, "Soft Actor-Critic for Discrete Action Settings", arXiv:1910.07207. Critics
return the values of all actions, so expectations over the policy are sums and need no samples. The
hyper-parameters are CleanRL's for SAC, and its share of the entropy, 0.89; the paper has 0.98.
Continuous actions are in `sac`, whose temperature this file uses.

    from hotloop.algorithms import sac_discrete
    result = sac_discrete.train(sac_discrete.preset("CartPole-v1"))
    action = result.policy.act(obs)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hotloop.algorithms import presets
from hotloop.algorithms.sac import (
    SoftOptions,
    State,
    initial_temperature,
    step_temperature,
    temperature,
)
from hotloop.envs import Spaces
from hotloop.learner import AdamState, Scalar, adam_step, move_towards, value_and_grad
from hotloop.ops import losses
from hotloop.policies import Exploration, Head, actor
from hotloop.policies.forward import LearnedNetwork
from hotloop.policies.heads import Categorical, Greedy
from hotloop.training import OffPolicy, ReplayBatch, Update
from hotloop.training.options import (
    Count,
    NetworkOptions,
    ReplayOptions,
    RequirementTable,
    RunOptions,
    ScheduledFraction,
    Sizes,
    between,
)


@dataclass(frozen=True, kw_only=True)
class Config(SoftOptions, ReplayOptions, NetworkOptions, RunOptions):
    """Options of a run of SAC for discrete actions."""

    total_timesteps: Count = 500_000
    """Transitions to collect, over all environments, rounded up to whole rounds."""
    hidden_sizes: Sizes = (256, 256)
    """Widths of the hidden layers of all networks."""
    activation: Literal["tanh", "relu"] = "relu"
    """Activation after each hidden layer of all networks."""
    num_critics: Annotated[int, between(1, 100)] = 2
    """K, number of critics. Targets and policy use their smallest value. Raise it if Q-values are
    too high."""
    policy_frequency: Count = 1
    """Update the policy every N critic updates, N times in a row."""
    target_entropy_share: ScheduledFraction = 0.89
    """Target entropy of a learned temperature, as a share of log A, the entropy of uniform actions.
    Lower it if the policy stays too random, raise it if it explores too little."""

    requires: ClassVar[RequirementTable] = {"target_entropy_share": {"alpha": (None,)}}


class Networks(NamedTuple):
    """The learned networks.

    Attributes:
        policy: the actor.
        critics: one critic's layers. The state has the parameters of all K.
    """

    policy: LearnedNetwork
    critics: LearnedNetwork


class Hyper(NamedTuple):
    """Hyper-parameters that may have a schedule. A learned temperature ignores `alpha`."""

    policy_learning_rate: Scalar
    critic_learning_rate: Scalar
    tau: Scalar
    alpha: Scalar
    target_entropy_share: Scalar


def networks(config: Config, spaces: Spaces, device: torch.device) -> Networks:
    """Return a categorical policy, and the layers of the critics, of the same shape."""

    def learned(head: Head) -> LearnedNetwork:
        network = actor(
            spaces,
            head,
            hidden_sizes=config.hidden_sizes,
            activation=config.activation,
            layer_norm=config.layer_norm,
            network=config.network,
        )
        return LearnedNetwork(network, precision=config.precision, device=device)

    critics = learned(Greedy())  # first, since its error for other actions names algorithms
    return Networks(learned(Categorical()), critics)


def init(nets: Networks, config: Config) -> State:
    """Return the initial state, with critics and targets of shape (K, C)."""
    policy = nets.policy.initial(config.seed)
    seeds = np.random.SeedSequence((config.seed, 1)).generate_state(config.num_critics)
    critics = torch.stack([nets.critics.initial(seed) for seed in seeds.tolist()])
    return State(
        policy=policy,
        policy_adam=AdamState.zeros(policy),
        critics=critics,
        critics_adam=AdamState.zeros(critics),
        targets=critics.clone(),
        **initial_temperature(config),
    )


def critic_values(critics: Tensor, obs: Tensor, nets: Networks) -> Tensor:
    """Return the values of all actions by all critics, (K, B, A).

    Args:
        critics: parameters, float32, (K, C).
        obs: (B, *obs_shape).
        nets: the networks.
    """
    # `vmap` makes one batched product per layer.
    return torch.func.vmap(lambda params: nets.critics.outputs(params, obs)[0])(critics)


def critic_loss(
    critics: Tensor, batch: ReplayBatch, target: Tensor, nets: Networks
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Return L = Σ_k E[w (Q_k(s, a) − y)²].

    Args:
        critics: float32, (K, C).
        batch: B transitions with weights w, their `importance`.
        target: y, (B,).
        nets: the networks.

    Returns:
        The loss, 0-d; Q, (K, B), and the differences, (K, B).
    """
    values = critic_values(critics, batch.obs, nets)
    index = batch.action[:, None].expand(len(values), -1, 1)
    value = values.gather(2, index).squeeze(2)
    difference = value - target
    return (batch.importance * difference.square()).mean(-1).sum(), (value, difference)


def update_critics(
    state: State, batch: ReplayBatch, noise: None, hyper: Hyper, *, nets: Networks, config: Config
) -> tuple[dict[str, Tensor], Tensor]:
    """Make one step of the critics and a soft update of their targets. `state` changes in place.

    y = r + γ V(s'),   V(s') = Σ_a π(a|s') (min_k Q'_k(s', a) − α log π(a|s'))

    Christodoulou 2019, arXiv:1910.07207, section 3.

    Returns:
        Metrics, and |TD error|, the mean over all critics, (B,).
    """
    with torch.no_grad():
        alpha = temperature(state, hyper.alpha, config)
        log_probs = nets.policy.outputs(state.policy, batch.next_obs)[0].log_softmax(1)
        values = critic_values(state.targets, batch.next_obs, nets).amin(0)
        value = (log_probs.exp() * (values - alpha * log_probs)).sum(1)
        target = batch.reward + batch.discount * value
    total, (value, difference), grad = value_and_grad(
        critic_loss, state.critics, batch, target, nets
    )
    adam_step(state.critics, grad, state.critics_adam, learning_rate=hyper.critic_learning_rate)
    move_towards(state.targets, state.critics, hyper.tau)
    td_error = difference.detach().abs().mean(0)
    metrics = {"critic_loss": total, "q_value": value.mean(), "td_error": td_error.mean()}
    return metrics, td_error


def policy_loss(
    params: Tensor, values: Tensor, alpha: Tensor, batch: ReplayBatch, nets: Networks
) -> tuple[Tensor, Tensor]:
    """Return L = E[Σ_a π(a|s) (α log π(a|s) − min_k Q_k(s, a))].

    Christodoulou 2019, arXiv:1910.07207, section 3.

    Args:
        params: float32, (P,).
        values: min_k Q_k(s, a), (B, A), without gradient.
        alpha: the temperature, (1,).
        batch: B transitions.
        nets: the networks.

    Returns:
        The loss, 0-d, and Σ_a π(a|s) log π(a|s), the negative entropy, (B,).
    """
    log_probs = nets.policy.outputs(params, batch.obs)[0].log_softmax(1)
    probs = log_probs.exp()
    loss = (probs * (alpha * log_probs - values)).sum(1)
    return losses.mean(loss, batch.weight), (probs * log_probs).sum(1)


def update_policy(
    state: State, batch: ReplayBatch, noise: None, hyper: Hyper, *, nets: Networks, config: Config
) -> dict[str, Tensor]:
    """Make one step of the policy and of the temperature, if it is learned, in place.

    The loss of the temperature is that of `sac`, with the exact entropy.
    """
    alpha = temperature(state, hyper.alpha, config)
    with torch.no_grad():
        values = critic_values(state.critics, batch.obs, nets).amin(0)
    value, log_prob, grad = value_and_grad(policy_loss, state.policy, values, alpha, batch, nets)
    adam_step(state.policy, grad, state.policy_adam, learning_rate=hyper.policy_learning_rate)
    max_entropy = math.log(nets.policy.network.action_spec.num_actions)
    rate = hyper.critic_learning_rate if config.alpha is None else None
    metrics = step_temperature(
        state, alpha, log_prob, hyper.target_entropy_share * max_entropy, learning_rate=rate
    )
    return {"policy_loss": value, **metrics}


algorithm = OffPolicy(
    name="sac_discrete",
    config=Config,
    networks=networks,
    init=init,
    hyper=Hyper,
    acting="policy",
    updates=(
        Update(function=update_critics, name="update of the critics"),
        Update(
            function=update_policy,
            name="update of the policy",
            every="policy_frequency",
            times="policy_frequency",
        ),
    ),
    exploration=lambda config: Exploration(random_steps=config.random_steps()),
    presets=presets.SAC_DISCRETE,
)
train, preset = algorithm.train, algorithm.preset
