"""DQN in a single file, in the style of CleanRL's `dqn.py`, with hotloop's replay and updates.

python dqn_hotloop.py --total_timesteps 50000
"""

import argparse
import random
from dataclasses import dataclass, fields
from functools import partial
from typing import NamedTuple

import gymnasium as gym
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from hotloop import learner, span, timing
from hotloop.replay import ReplayBuffer


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


class Transitions(NamedTuple):
    obs: Tensor
    action: Tensor
    reward: Tensor
    next_obs: Tensor
    terminated: Tensor


@dataclass
class State:
    params: Tensor
    target: Tensor
    adam: learner.AdamState


class Hyper(NamedTuple):
    learning_rate: Tensor


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
    rb = ReplayBuffer.for_env(env, args.buffer_size, seed=args.seed)

    # Compile the update if this pays for the number of its calls.
    params = learner.flatten_parameters(q_network)
    state = State(params, params.clone(), learner.AdamState.zeros(params))
    hyper = Hyper(torch.tensor(args.learning_rate))
    num_updates = (args.total_timesteps - args.learning_starts) // args.train_frequency
    flop = 4 * args.batch_size * len(params)
    choice = learner.choose("auto", num_calls=num_updates, flop_per_call=flop)
    step = partial(gradient_step, q_network, args)
    update = learner.BoundUpdate(step, state, hyper, choice, "update")

    obs, _ = env.reset(seed=args.seed)
    for global_step in range(args.total_timesteps):
        # Choose an action.
        fraction = global_step / (args.exploration_fraction * args.total_timesteps)
        epsilon = max(args.end_e, args.start_e + fraction * (args.end_e - args.start_e))
        if random.random() < epsilon:
            action = env.action_space.sample()
        else:
            with span("act"), torch.no_grad():
                action = q_network(torch.as_tensor(obs)).argmax().item()

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

        # Update the network.
        if global_step > args.learning_starts:
            if global_step % args.train_frequency == 0:
                with span("update"):
                    data = rb.sample(args.batch_size).torch()
                    update(Transitions(*(data[name] for name in Transitions._fields)), None)
            if global_step % args.target_network_frequency == 0:
                state.target.copy_(state.params)
    env.close()
    print(timing.report())
    return q_network


def gradient_step(q_network, args, state, data, noise, hyper):
    target_network = partial(learner.call_with, q_network, state.target)

    def loss_of(params):
        network = partial(learner.call_with, q_network, params)
        return td_loss(network, target_network, data, args.gamma), None

    loss, _, grad = learner.value_and_grad(loss_of, state.params)
    learner.adam_step(state.params, grad, state.adam, learning_rate=hyper.learning_rate)
    return {"loss": loss}


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
