"""A script for Stable-Baselines3, which you can also run faster, unchanged.

python examples/sb3.py
hotloop accelerate examples/sb3.py
"""

import sys

from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy


def main(total_timesteps=100_000):
    envs = make_vec_env("CartPole-v1", n_envs=8, seed=1)
    model = PPO("MlpPolicy", envs, n_steps=128, batch_size=256, seed=1)
    model.learn(total_timesteps)
    mean, std = evaluate_policy(model, envs, n_eval_episodes=10)
    print(f"mean return: {mean:.1f} ± {std:.1f}, trained by {type(model).__module__}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
