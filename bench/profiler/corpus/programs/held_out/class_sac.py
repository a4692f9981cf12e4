# type: ignore
"""SAC in classes on HalfCheetah, with an own buffer and a log of what happens."""

import argparse
import copy
import time

import gymnasium as gym
import numpy as np
import torch
from torch import nn

#: length --env-steps 1400
#: imports

torch.set_num_threads(1)

#: globals


class Memory:
    def __init__(self, capacity, sizes):
        self.columns = [np.zeros((capacity, size), np.float32) for size in sizes]
        self.capacity, self.count = capacity, 0

    def push(self, *values):
        for column, value in zip(self.columns, values, strict=True):
            column[self.count % self.capacity] = value
        self.count += 1

    def sample(self, rng, num):
        rows = rng.integers(0, min(self.count, self.capacity), num)
        #: sample count=self.count steady=yes
        return [torch.from_numpy(column[rows]) for column in self.columns]


class Actor(nn.Module):
    def __init__(self, obs, act):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(obs, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU())
        self.head = nn.Linear(128, 2 * act)

    def forward(self, obs):
        mean, log_std = self.head(self.body(obs)).chunk(2, -1)
        log_std = log_std.clamp(-5, 1)
        noise = torch.randn_like(mean)
        raw = mean + log_std.exp() * noise
        action = raw.tanh()
        log_prob = -0.5 * noise.pow(2) - log_std - torch.log1p(1e-6 - action.pow(2))
        return action, log_prob.sum(-1, keepdim=True)


class Twin(nn.Module):
    """Two critics as one batched product."""

    def __init__(self, inputs, width=128):
        super().__init__()
        sizes = [(inputs, width), (width, width), (width, 1)]
        self.weights = nn.ParameterList(
            [nn.Parameter(torch.randn(2, i, o) / i**0.5) for i, o in sizes]
        )
        self.biases = nn.ParameterList([nn.Parameter(torch.zeros(2, 1, o)) for _, o in sizes])

    def forward(self, obs, act):
        x = torch.cat([obs, act], -1).expand(2, -1, -1)
        for layer in range(3):
            x = torch.baddbmm(self.biases[layer], x, self.weights[layer])
            x = x.relu() if layer < 2 else x
        return x


class SAC:
    def __init__(self, obs, act):
        self.actor, self.critic = Actor(obs, act), Twin(obs + act)
        self.target = copy.deepcopy(self.critic).requires_grad_(False)
        self.actor_opt = torch.optim.Adam(self.actor.parameters(), 3e-4, fused=True)
        self.critic_opt = torch.optim.Adam(self.critic.parameters(), 3e-4, fused=True)
        self.num_updates = 0

    @torch.no_grad()
    def act(self, obs):
        return self.actor(torch.from_numpy(obs))[0].numpy()

    def update(self, obs, act, rew, nxt, end):
        with torch.no_grad():
            next_act, log_prob = self.actor(nxt)
            soft = self.target(nxt, next_act).amin(0) - 0.1 * log_prob
            goal = rew + 0.99 * (1 - end) * soft
        critic_loss = (self.critic(obs, act) - goal).pow(2).mean()
        self.critic_opt.zero_grad()
        critic_loss.backward()
        self.critic_opt.step()
        self.critic.requires_grad_(False)
        new_act, log_prob = self.actor(obs)
        actor_loss = (0.1 * log_prob - self.critic(obs, new_act).amin(0)).mean()
        self.actor_opt.zero_grad()
        actor_loss.backward()
        self.actor_opt.step()
        self.critic.requires_grad_(True)
        with torch.no_grad():
            pairs = list(self.target.parameters()), list(self.critic.parameters())
            torch._foreach_lerp_(*pairs, 0.005)
        self.num_updates += 1
        #: update count=self.num_updates net=self.actor steady=yes


class Experiment:
    def __init__(self, seed):
        torch.manual_seed(seed)
        self.rng = np.random.default_rng(seed)
        self.env = gym.make("HalfCheetah-v5", max_episode_steps=250)
        #: wrap env=self.env copies=1
        self.agent = SAC(17, 6)
        self.memory = Memory(100_000, (17, 6, 1, 17, 1))
        self.seed, self.scores = seed, []

    def run(self, steps, warm_up=400):
        obs = self.env.reset(seed=self.seed)[0].astype(np.float32)
        score = 0.0
        #: setup net=self.agent.actor
        for step in range(steps):
            action = self.rng.uniform(-1, 1, 6) if step < warm_up else self.agent.act(obs)
            nxt, reward, end, cut, _ = self.env.step(action)
            nxt = nxt.astype(np.float32)
            self.memory.push(obs, action, reward, nxt, end)
            obs, score = nxt, score + reward
            #: step obs=obs reward=float(reward) count=step net=self.agent.actor steady=yes
            if end or cut:
                self.scores.append(score)
                #: episode reward=float(score) count=len(self.scores) net=self.agent.actor steady=yes
                obs, score = self.env.reset()[0].astype(np.float32), 0.0
            if step >= warm_up:
                self.agent.update(*self.memory.sample(self.rng, 128))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--env-steps", type=int, default=1400)
    args = parser.parse_args()
    experiment = Experiment(seed=3)
    before = time.perf_counter()
    experiment.run(args.env_steps)
    after = time.perf_counter()
    print("scores", [round(float(score)) for score in experiment.scores])
    print(f"loop {after - before:.3f} s")


if __name__ == "__main__":
    main()
