"""Train a recurrent policy: CartPole without velocities, which a single observation hides.

python examples/memory.py
cd examples && hotloop train ppo --env-id memory:make --memory lstm:64
"""

import sys

import gymnasium
import numpy as np

from hotloop.algorithms import ppo


class Positions(gymnasium.ObservationWrapper):
    """Keeps the position of the cart and the angle of the pole."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def observation(self, observation):
        return observation[[0, 2]]


def make():
    return Positions(gymnasium.make("CartPole-v1"))


def main(total_timesteps=150_000):
    config = ppo.Config(
        memory="lstm:64",
        gamma=0.98,
        gae_lambda=0.9,
        normalize_reward=True,
        total_timesteps=total_timesteps,
    )
    result = ppo.train(config, env=make)
    print(f"mean return: {result.mean_return:.1f}")

    # You keep the hidden state between calls. Make a new one at the start of each episode.
    env, policy = make(), result.policy
    obs, _ = env.reset(seed=1)
    memory = policy.new_memory()
    print(f"first actions: {[int(policy.act(obs, memory)) for _ in range(3)]}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
