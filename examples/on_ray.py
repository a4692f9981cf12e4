"""Step the environments in workers of a Ray cluster, or of a Ray on this machine.

python examples/on_ray.py
RAY_ADDRESS=head:6379 python examples/on_ray.py
"""

import sys

from hotloop.algorithms import ppo


def main(total_timesteps=100_000):
    config = ppo.Config(
        env_id="CartPole-v1",
        workers=2,
        backend="ray",
        schedule="variable",  # slow environments take fewer steps, and the others do not wait
        total_timesteps=total_timesteps,
    )
    result = ppo.train(config)
    print(f"mean return: {result.mean_return:.1f}")
    print(result.accounting)  # the fate of every transition


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
