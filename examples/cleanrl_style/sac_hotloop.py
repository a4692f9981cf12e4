"""SAC in a single file, in the style of CleanRL's `sac_continuous_action.py`, with hotloop.

Replay and updates are hotloop's.

    python sac_hotloop.py --env_id HalfCheetah-v5 --total_timesteps 100000
"""

import argparse
from dataclasses import dataclass, fields
from functools import partial
from typing import NamedTuple

import gymnasium as gym
import torch
from torch import Tensor, nn
from torch.distributions import Normal
from torch.nn.functional import mse_loss, relu

from hotloop import learner, span, timing
from hotloop.replay import ReplayBuffer

MIN_LOG_STD, MAX_LOG_STD = -5.0, 2.0


@dataclass
class Args:
    env_id: str = "HalfCheetah-v5"
    seed: int = 1
    total_timesteps: int = 1_000_000
    buffer_size: int = 1_000_000
    gamma: float = 0.99
    tau: float = 0.005
    batch_size: int = 256
    learning_starts: int = 5_000
    policy_lr: float = 3e-4
    q_lr: float = 1e-3
    policy_frequency: int = 2


class Transitions(NamedTuple):
    obs: Tensor
    action: Tensor
    reward: Tensor
    next_obs: Tensor
    terminated: Tensor


@dataclass
class State:
    actor: Tensor
    critics: Tensor
    target: Tensor
    log_alpha: Tensor
    actor_adam: learner.AdamState
    critics_adam: learner.AdamState
    alpha_adam: learner.AdamState


class Critic(nn.Module):
    def __init__(self, env):
        super().__init__()
        self.fc1 = nn.Linear(env.observation_space.shape[0] + env.action_space.shape[0], 256)
        self.fc2 = nn.Linear(256, 256)
        self.fc3 = nn.Linear(256, 1)

    def forward(self, obs, action):
        hidden = relu(self.fc1(torch.cat([obs, action], 1)))
        return self.fc3(relu(self.fc2(hidden))).flatten()


class Critics(nn.Module):
    def __init__(self, env):
        super().__init__()
        self.qf1, self.qf2 = Critic(env), Critic(env)

    def forward(self, obs, action):
        return self.qf1(obs, action), self.qf2(obs, action)


class Actor(nn.Module):
    def __init__(self, env):
        super().__init__()
        self.fc1 = nn.Linear(env.observation_space.shape[0], 256)
        self.fc2 = nn.Linear(256, 256)
        self.fc_mean = nn.Linear(256, env.action_space.shape[0])
        self.fc_logstd = nn.Linear(256, env.action_space.shape[0])
        low, high = torch.as_tensor(env.action_space.low), torch.as_tensor(env.action_space.high)
        self.register_buffer("scale", (high - low) / 2.0)
        self.register_buffer("bias", (high + low) / 2.0)

    def forward(self, obs, noise):
        hidden = relu(self.fc2(relu(self.fc1(obs))))
        log_std = self.fc_logstd(hidden).tanh()
        log_std = MIN_LOG_STD + 0.5 * (MAX_LOG_STD - MIN_LOG_STD) * (log_std + 1.0)
        policy = Normal(self.fc_mean(hidden), log_std.exp(), validate_args=False)
        raw = policy.mean + policy.stddev * noise
        bounded = raw.tanh()
        log_prob = policy.log_prob(raw) - torch.log(self.scale * (1.0 - bounded**2) + 1e-6)
        return bounded * self.scale + self.bias, log_prob.sum(1)


def main(args):
    torch.manual_seed(args.seed)
    env = gym.wrappers.RecordEpisodeStatistics(gym.make(args.env_id))
    env.action_space.seed(args.seed)
    actor, critics = Actor(env), Critics(env)
    rb = ReplayBuffer.for_env(env, args.buffer_size, seed=args.seed)

    # Compile the updates if this pays for the number of their calls.
    params = learner.flatten_parameters(actor), learner.flatten_parameters(critics)
    log_alpha = torch.zeros(1)
    adams = [learner.AdamState.zeros(x) for x in (*params, log_alpha)]
    state = State(*params, params[1].clone(), log_alpha, *adams)
    num_updates = args.total_timesteps - args.learning_starts
    flop = 4 * args.batch_size * sum(map(len, params))
    choice = learner.choose("auto", num_calls=num_updates, flop_per_call=flop)
    steps = partial(critics_step, actor, critics, args), partial(actor_step, actor, critics, args)
    update_critics = learner.BoundUpdate(steps[0], state, None, choice, "update of the critics")
    update_actor = learner.BoundUpdate(steps[1], state, None, choice, "update of the actor")
    action_shape = env.action_space.shape

    obs, _ = env.reset(seed=args.seed)
    for global_step in range(args.total_timesteps):
        # Choose an action.
        if global_step < args.learning_starts:
            action = env.action_space.sample()
        else:
            with span("act"), torch.no_grad():
                inputs = torch.as_tensor(obs, dtype=torch.float32)[None]
                action = actor(inputs, torch.randn(1, *action_shape))[0][0].numpy()

        # Make a step and store it.
        with span("step"):
            next_obs, reward, terminated, truncated, info = env.step(action)
        rb.add(
            obs=obs,
            action=action,
            reward=reward,
            next_obs=next_obs,
            terminated=terminated,
            truncated=truncated,
        )
        obs = next_obs
        if terminated or truncated:
            print(f"global_step={global_step}, episodic_return={info['episode']['r']:.0f}")
            obs, _ = env.reset()

        # Update the networks.
        if global_step > args.learning_starts:
            with span("update"):
                batch = rb.sample(args.batch_size).torch()
                data = Transitions(*(batch[name] for name in Transitions._fields))
                update_critics(data, torch.randn(args.batch_size, *action_shape))
                # As many actor updates as critic updates, but delayed.
                delayed = global_step % args.policy_frequency == 0
                for _ in range(args.policy_frequency if delayed else 0):
                    update_actor(data, torch.randn(2, args.batch_size, *action_shape))
                learner.move_towards(state.target, state.critics, args.tau)
    env.close()
    print(timing.report())
    return actor


def critics_step(actor, critics, args, state, data, noise, hyper):
    next_action, next_log_pi = learner.call_with(actor, state.actor, data.next_obs, noise)
    values = learner.call_with(critics, state.target, data.next_obs, next_action)
    next_value = torch.minimum(*values) - state.log_alpha.exp() * next_log_pi
    target = data.reward + args.gamma * (1.0 - data.terminated.float()) * next_value

    def loss_of(params):
        values = learner.call_with(critics, params, data.obs, data.action)
        return sum(mse_loss(value, target) for value in values), None

    qf_loss, _, grad = learner.value_and_grad(loss_of, state.critics)
    learner.adam_step(state.critics, grad, state.critics_adam, learning_rate=args.q_lr)
    return {"qf_loss": qf_loss}


def actor_step(actor, critics, args, state, data, noise, hyper):
    alpha = state.log_alpha.exp()

    def loss_of(params):
        pi, log_pi = learner.call_with(actor, params, data.obs, noise[0])
        value = torch.minimum(*learner.call_with(critics, state.critics, data.obs, pi))
        return (alpha * log_pi - value).mean(), None

    actor_loss, _, grad = learner.value_and_grad(loss_of, state.actor)
    learner.adam_step(state.actor, grad, state.actor_adam, learning_rate=args.policy_lr)

    _, log_pi = learner.call_with(actor, state.actor, data.obs, noise[1])
    target_entropy = -float(data.action.shape[1])
    grad = -alpha * (log_pi + target_entropy).mean()
    learner.adam_step(state.log_alpha, grad, state.alpha_adam, learning_rate=args.q_lr)
    return {"actor_loss": actor_loss, "alpha": alpha[0]}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for field in fields(Args):
        parser.add_argument(f"--{field.name}", type=field.type, default=field.default)
    main(Args(**vars(parser.parse_args())))
