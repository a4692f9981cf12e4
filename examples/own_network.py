"""Train a torch module of your own.

python examples/own_network.py
cd examples && hotloop train ppo --env-id CartPole-v1 --network own_network:ResidualNet
"""

import math
import sys

from torch import nn

from hotloop.algorithms import ppo


class ResidualNet(nn.Module):
    """Two residual layers, which the policy and the value share."""

    def __init__(self, obs_shape, head_size):
        super().__init__()
        self.embed = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(obs_shape), 64))
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64), nn.SiLU()) for _ in range(2)
        )
        self.policy = nn.Linear(64, head_size)
        self.value = nn.Linear(64, 1)

    def forward(self, obs):  # (B, *obs_shape)
        x = self.embed(obs)
        for block in self.blocks:
            x = x + block(x)
        return self.policy(x), self.value(x)  # (B, head_size) and (B, 1)


def main(total_timesteps=100_000):
    config = ppo.Config(env_id="CartPole-v1", total_timesteps=total_timesteps, learning_rate=3e-4)
    result = ppo.train(config, network=ResidualNet)
    print(f"mean return: {result.mean_return:.1f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
