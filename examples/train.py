"""Train PPO on CartPole, evaluate the policy, and act with it.

python examples/train.py
"""

import sys

import hotloop
from hotloop.algorithms import ppo


def main(total_timesteps=100_000):
    result = ppo.train(ppo.Config(env_id="CartPole-v1", total_timesteps=total_timesteps, seed=1))
    print(result.timing)  # where the time went
    print(f"mean return of training: {result.mean_return:.1f}")

    # A run is a directory: evaluate it here, or load it in another process.
    evaluation = hotloop.evaluate(result.run_dir, episodes=10)
    print(f"mean return of 10 evaluation episodes: {evaluation.mean_return:.1f}")
    policy = hotloop.load(result.run_dir)
    print(f"action: {policy.act([0.0, 0.1, 0.0, -0.1])}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
