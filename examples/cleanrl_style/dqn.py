"""DQN in a single file, in the style of CleanRL's `dqn.py`, with its hyper-parameters.

python dqn.py --total_timesteps 50000
"""

import argparse
import random
from copy import deepcopy
from dataclasses import dataclass, fields

import gymnasium as gym
import torch
from replay import ReplayBuffer
from torch import nn, optim
from torch.nn.functional import mse_loss


@dataclass
class Args:
    env_id: str = "CartPole-v1"
    seed: int = 1
    total_timesteps: int = 500_000
    learning_rate: float = 2.5e-4
    buffer_size: int = 10_000
    gamma: float = 0.99
    target_network_frequency: int = 500
    batch_size: int = 128
    start_e: float = 1.0
    end_e: float = 0.05
    exploration_fraction: float = 0.5
    learning_starts: int = 10_000
    train_frequency: int = 10


def q_values(env):
    return nn.Sequential(
        nn.Linear(env.observation_space.shape[0], 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, env.action_space.n),
    )


def main(args):
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    env = gym.wrappers.RecordEpisodeStatistics(gym.make(args.env_id))
    env.action_space.seed(args.seed)
    q_network = q_values(env)
    target_network = deepcopy(q_network)
    optimizer = optim.Adam(q_network.parameters(), lr=args.learning_rate)
    rb = ReplayBuffer(env, args.buffer_size, args.seed)

    obs, _ = env.reset(seed=args.seed)
    for global_step in range(args.total_timesteps):
        # Choose an action.
        fraction = global_step / (args.exploration_fraction * args.total_timesteps)
        epsilon = max(args.end_e, args.start_e + fraction * (args.end_e - args.start_e))
        if random.random() < epsilon:
            action = env.action_space.sample()
        else:
            with torch.no_grad():
                action = q_network(torch.as_tensor(obs)).argmax().item()

        # Make a step and store it.
        next_obs, reward, terminated, truncated, info = env.step(action)
        rb.add(obs, action, reward, next_obs, terminated)
        obs = next_obs
        if terminated or truncated:
            print(f"global_step={global_step}, episodic_return={info['episode']['r']:.0f}")
            obs, _ = env.reset()

        # Update the network.
        if global_step > args.learning_starts:
            if global_step % args.train_frequency == 0:
                data = rb.sample(args.batch_size)
                loss = td_loss(q_network, target_network, data, args.gamma)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            if global_step % args.target_network_frequency == 0:
                target_network.load_state_dict(q_network.state_dict())
    env.close()
    return q_network


def td_loss(q_network, target_network, data, gamma):
    with torch.no_grad():
        best = target_network(data.next_obs).amax(1)
        target = data.reward + gamma * (1.0 - data.terminated.float()) * best
    return mse_loss(q_network(data.obs).gather(1, data.action.unsqueeze(1)).flatten(), target)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for field in fields(Args):
        parser.add_argument(f"--{field.name}", type=field.type, default=field.default)
    main(Args(**vars(parser.parse_args())))
