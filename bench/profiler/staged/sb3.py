"""Stable-Baselines3: sb3.py ppo|ppo-processes|sac|dqn STEPS TIMES_FILE."""

import sys

import gymnasium as gym
import torch
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from bench.profiler.staged.timers import begin, timed


def measure(model):
    """Time an algorithm's own objects, around what is wrapped in their classes."""
    timed(model, "train", "update")
    timed(model.env, "step", "env")
    if hasattr(model, "rollout_buffer"):
        timed(model.rollout_buffer, "add", "replay")
        timed(model.policy, "forward", "act")
    else:
        timed(model.replay_buffer, "add", "replay")
        timed(model.replay_buffer, "sample", "replay")
        timed(model, "_sample_action", "act")
    begin()


if __name__ == "__main__":
    kind, num_steps = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    if kind == "sac":
        model = SAC("MlpPolicy", gym.make("Pendulum-v1"), verbose=0)
    elif kind == "dqn":
        model = DQN("MlpPolicy", gym.make("CartPole-v1"), verbose=0, learning_starts=500)
    else:
        chosen = SubprocVecEnv if kind == "ppo-processes" else DummyVecEnv
        envs = make_vec_env("CartPole-v1", n_envs=4, vec_env_cls=chosen)
        model = PPO("MlpPolicy", envs, verbose=0, n_steps=512)
    measure(model)
    model.learn(total_timesteps=num_steps, log_interval=4)
    model.env.close()
