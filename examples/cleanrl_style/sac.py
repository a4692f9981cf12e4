"""SAC in a single file, in the style of CleanRL's `sac_continuous_action.py`.

It has CleanRL's hyper-parameters.

    python sac.py --env_id HalfCheetah-v5 --total_timesteps 100000
"""

import argparse
from copy import deepcopy
from dataclasses import dataclass, fields

import gymnasium as gym
import torch
from replay import ReplayBuffer
from torch import nn, optim
from torch.distributions import Normal
from torch.nn.functional import mse_loss, relu

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

    def forward(self, obs):
        hidden = relu(self.fc2(relu(self.fc1(obs))))
        log_std = self.fc_logstd(hidden).tanh()
        log_std = MIN_LOG_STD + 0.5 * (MAX_LOG_STD - MIN_LOG_STD) * (log_std + 1.0)
        policy = Normal(self.fc_mean(hidden), log_std.exp(), validate_args=False)
        raw = policy.rsample()
        bounded = raw.tanh()
        log_prob = policy.log_prob(raw) - torch.log(self.scale * (1.0 - bounded**2) + 1e-6)
        return bounded * self.scale + self.bias, log_prob.sum(1)


def main(args):
    torch.manual_seed(args.seed)
    env = gym.wrappers.RecordEpisodeStatistics(gym.make(args.env_id))
    env.action_space.seed(args.seed)
    actor, critics = Actor(env), Critics(env)
    target_critics = deepcopy(critics)
    q_optimizer = optim.Adam(critics.parameters(), lr=args.q_lr)
    actor_optimizer = optim.Adam(actor.parameters(), lr=args.policy_lr)
    target_entropy = -float(env.action_space.shape[0])
    log_alpha = torch.zeros(1, requires_grad=True)
    a_optimizer = optim.Adam([log_alpha], lr=args.q_lr)
    rb = ReplayBuffer(env, args.buffer_size, args.seed)

    obs, _ = env.reset(seed=args.seed)
    for global_step in range(args.total_timesteps):
        # Choose an action.
        if global_step < args.learning_starts:
            action = env.action_space.sample()
        else:
            with torch.no_grad():
                action = actor(torch.as_tensor(obs, dtype=torch.float32)[None])[0][0].numpy()

        # Make a step and store it.
        next_obs, reward, terminated, truncated, info = env.step(action)
        rb.add(obs, action, reward, next_obs, terminated)
        obs = next_obs
        if terminated or truncated:
            print(f"global_step={global_step}, episodic_return={info['episode']['r']:.0f}")
            obs, _ = env.reset()

        # Update the networks.
        if global_step > args.learning_starts:
            data = rb.sample(args.batch_size)
            alpha = log_alpha.exp().detach()
            with torch.no_grad():
                next_action, next_log_pi = actor(data.next_obs)
                next_value = torch.minimum(*target_critics(data.next_obs, next_action))
                next_value = next_value - alpha * next_log_pi
                target = data.reward + args.gamma * (1.0 - data.terminated.float()) * next_value
            qf_loss = sum(mse_loss(value, target) for value in critics(data.obs, data.action))
            q_optimizer.zero_grad()
            qf_loss.backward()
            q_optimizer.step()

            # As many actor updates as critic updates, but delayed.
            delayed = global_step % args.policy_frequency == 0
            for _ in range(args.policy_frequency if delayed else 0):
                pi, log_pi = actor(data.obs)
                alpha = log_alpha.exp().detach()
                actor_loss = (alpha * log_pi - torch.minimum(*critics(data.obs, pi))).mean()
                actor_optimizer.zero_grad()
                actor_loss.backward()
                actor_optimizer.step()
                with torch.no_grad():
                    _, log_pi = actor(data.obs)
                alpha_loss = (-log_alpha.exp() * (log_pi + target_entropy)).mean()
                a_optimizer.zero_grad()
                alpha_loss.backward()
                a_optimizer.step()

            both = critics.parameters(), target_critics.parameters()
            with torch.no_grad():
                for x, target_x in zip(*both, strict=True):
                    target_x.lerp_(x, args.tau)
    env.close()
    return actor


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for field in fields(Args):
        parser.add_argument(f"--{field.name}", type=field.type, default=field.default)
    main(Args(**vars(parser.parse_args())))
