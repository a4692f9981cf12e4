"""SAC that samples in proportion to return, and reads its whole buffer for each batch.

    hotloop profile examples/slow/weighted_replay.py
    hotloop profile examples/slow/weighted_replay.py --healthy

Each update computes the smallest return and the sum of all weights, although a step changes few of
them. So updates get slower as the buffer fills. The healthy twin keeps the sums in a tree.
"""

from __future__ import annotations

import argparse
import copy
import time

import numpy as np
import torch
from torch import nn

OBS, ACTIONS, ALPHA, GAMMA, TAU = 8, 2, 0.2, 0.99, 0.005


class ReplayBuffer:
    """Samples without replacement, p = w / Σ w, w = B + |min(min B, 0)|, from the returns B."""

    def __init__(self, capacity, rng):
        self.rng = rng
        self.obs = np.zeros((capacity, OBS), np.float32)
        self.action = np.zeros((capacity, ACTIONS), np.float32)
        self.reward = np.zeros((capacity, 1), np.float32)
        self.next_obs = np.zeros((capacity, OBS), np.float32)
        self.returns = np.zeros(capacity)
        self.size = 0

    def add(self, obs, action, reward, next_obs, returns):
        rows = slice(self.size, self.size + len(obs))
        self.obs[rows], self.action[rows], self.next_obs[rows] = obs, action, next_obs
        self.reward[rows, 0], self.returns[rows] = reward, returns
        self.size = rows.stop

    def sample(self, batch_size):
        index = self.draw(batch_size)
        fields = self.obs, self.action, self.reward, self.next_obs
        return [torch.from_numpy(field[index]) for field in fields]

    def draw(self, batch_size):
        returns = self.returns[: self.size]
        weights = returns + abs(min(returns.min(), 0.0))
        return self.rng.choice(self.size, batch_size, replace=False, p=weights / weights.sum())


class TreeReplayBuffer(ReplayBuffer):
    """The same distribution: a subtree has the weight Σ B + |m| · count, even if m changes."""

    def __init__(self, capacity, rng):
        super().__init__(capacity, rng)
        self.num_leaves = 1 << (capacity - 1).bit_length()
        self.sums, self.counts = np.zeros(2 * self.num_leaves), np.zeros(2 * self.num_leaves)
        self.lowest = 0.0

    def add(self, obs, action, reward, next_obs, returns):
        first, last = self.num_leaves + self.size, self.num_leaves + self.size + len(obs)
        super().add(obs, action, reward, next_obs, returns)
        self.lowest = min(self.lowest, returns.min())
        self.sums[first:last], self.counts[first:last] = returns, 1.0
        while first > 1:
            first, last = first // 2, (last + 1) // 2
            for tree in (self.sums, self.counts):
                children = tree[2 * first : 2 * last]
                tree[first:last] = children[::2] + children[1::2]

    def draw(self, batch_size):
        shift, index = abs(self.lowest), np.zeros(0, np.int64)
        while len(index) < batch_size:
            weight = self.rng.random(batch_size) * (self.sums[1] + shift * self.counts[1])
            node = np.ones(batch_size, np.int64)
            while node[0] < self.num_leaves:
                node *= 2
                left_weight = self.sums[node] + shift * self.counts[node]
                is_right = weight >= left_weight
                weight -= left_weight * is_right
                node += is_right
            index = np.append(index, np.minimum(node - self.num_leaves, self.size - 1))
            index = index[np.sort(np.unique(index, return_index=True)[1])]
        return index[:batch_size]


def network(num_inputs, num_outputs, width):
    return nn.Sequential(
        nn.Linear(num_inputs, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, num_outputs),
    )


class Sac:
    def __init__(self, width):
        self.actor = network(OBS, 2 * ACTIONS, width)
        self.critics = nn.ModuleList(network(OBS + ACTIONS, 1, width) for _ in range(2))
        self.targets = copy.deepcopy(self.critics).requires_grad_(False)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=3e-4)
        self.critic_optimizer = torch.optim.Adam(self.critics.parameters(), lr=3e-4)

    def act(self, obs):
        mean, log_std = self.actor(obs).chunk(2, dim=1)
        std = log_std.clamp(-5, 2).exp()
        raw = mean + std * torch.randn_like(mean)
        action = raw.tanh()
        log_prob = (
            -((raw - mean) / std).square() / 2 - std.log() - (1 - action.square() + 1e-6).log()
        )
        return action, log_prob.sum(1, keepdim=True)

    def value(self, critics, obs, action):
        return torch.stack([critic(torch.cat((obs, action), 1)) for critic in critics])

    def update(self, obs, action, reward, next_obs):
        with torch.no_grad():
            next_action, log_prob = self.act(next_obs)
            next_value = self.value(self.targets, next_obs, next_action).amin(0) - ALPHA * log_prob
            td_target = reward + GAMMA * next_value
        loss = (self.value(self.critics, obs, action) - td_target).square().mean()
        self.critic_optimizer.zero_grad()
        loss.backward()
        self.critic_optimizer.step()
        new_action, log_prob = self.act(obs)
        loss = (ALPHA * log_prob - self.value(self.critics, obs, new_action).amin(0)).mean()
        self.actor_optimizer.zero_grad()
        loss.backward()
        self.actor_optimizer.step()
        with torch.no_grad():
            params, targets = list(self.critics.parameters()), list(self.targets.parameters())
            torch._foreach_lerp_(targets, params, TAU)


def simulate(rng, obs):
    """Step many simulators at once."""
    action = rng.uniform(-1, 1, (len(obs), ACTIONS)).astype(np.float32)
    next_obs = 0.9 * obs + 0.1 * rng.standard_normal(obs.shape, np.float32)
    return action, action.sum(1), next_obs, rng.normal(1000.0, 800.0, len(obs))


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--healthy", action="store_true", help="sample with a tree of sums")
    parser.add_argument("--updates", type=int, default=400)
    parser.add_argument("--rows", type=int, default=4000, help="transitions between two updates")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--width", type=int, default=256, help="width of the hidden layers")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    buffer_class = TreeReplayBuffer if options.healthy else ReplayBuffer
    replay, sac = buffer_class(options.updates * options.rows, rng), Sac(options.width)
    obs = rng.standard_normal((options.rows, OBS), np.float32)
    start_s = time.perf_counter()
    for _ in range(options.updates):
        action, reward, next_obs, returns = simulate(rng, obs)
        replay.add(obs, action, reward, next_obs, returns)
        sac.update(*replay.sample(options.batch))
        obs = next_obs
    seconds = time.perf_counter() - start_s
    print(f"{options.updates} updates, {replay.size:,} transitions: {seconds:.2f} s")


if __name__ == "__main__":
    main()
