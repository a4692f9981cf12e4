# type: ignore
"""Double DQN on Acrobot whose parts come from a configuration, composed by Hydra."""

import argparse
import copy
import pathlib
import time

import gymnasium as gym
import hydra
import numpy as np
import torch
from omegaconf import OmegaConf
from torch import nn

#: length --steps 7500
#: imports

torch.set_num_threads(1)
CONFIG = """
env: Acrobot-v1
network: {hidden: 96, layers: 2}
optimizer: {lr: 1.0e-3, eps: 1.0e-5}
memory: {size: 20000, batch: 64, start: 500}
target_every: 200
gamma: 0.99
"""

#: globals


class Memory:
    def __init__(self, size, dims, rng):
        self.obs = np.zeros((size, dims), np.float32)
        self.after = np.zeros((size, dims), np.float32)
        self.action, self.reward = np.zeros(size, np.int64), np.zeros(size, np.float32)
        self.end = np.zeros(size, np.float32)
        self.size, self.filled, self.rng = size, 0, rng

    def add(self, obs, action, reward, after, end):
        row = self.filled % self.size
        self.obs[row], self.after[row] = obs, after
        self.action[row], self.reward[row], self.end[row] = action, reward, end
        self.filled += 1

    def draw(self, batch):
        rows = self.rng.integers(0, min(self.filled, self.size), batch)
        fields = (self.obs, self.action, self.reward, self.after, self.end)
        #: sample count=self.filled
        return [torch.from_numpy(field[rows]) for field in fields]


class Agent:
    def __init__(self, config, dims, actions):
        hidden, layers = config.network.hidden, []
        for number in range(config.network.layers):
            layers += [nn.Linear(hidden if number else dims, hidden), nn.ReLU()]
        self.net = nn.Sequential(*layers, nn.Linear(hidden, actions))
        self.target = copy.deepcopy(self.net)
        self.optimizer = torch.optim.Adam(
            self.net.parameters(), config.optimizer.lr, eps=config.optimizer.eps, fused=True
        )
        # Plain numbers instead of lookups in the configuration.
        self.gamma, self.every, self.updates = float(config.gamma), int(config.target_every), 0

    def act(self, obs):
        with torch.no_grad():
            return int(self.net(torch.from_numpy(obs)).argmax())

    def update(self, obs, action, reward, after, end):
        with torch.no_grad():
            best = self.net(after).argmax(1, keepdim=True)
            value = self.target(after).gather(1, best).squeeze(1)
            goal = reward + self.gamma * (1.0 - end) * value
        chosen = self.net(obs).gather(1, action.unsqueeze(1)).squeeze(1)
        loss = nn.functional.smooth_l1_loss(chosen, goal)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.updates += 1
        if self.updates % self.every == 0:
            self.target.load_state_dict(self.net.state_dict())
        #: update count=self.updates net=self.net steady=yes


def main(steps):
    folder = pathlib.Path("conf").absolute()
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(CONFIG)
    with hydra.initialize_config_dir(str(folder), version_base=None):
        config = hydra.compose("config", overrides=["network.hidden=128"])
    print(OmegaConf.to_yaml(config.network))
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    env = gym.make(config.env)
    #: wrap env=env copies=1
    agent = Agent(config, env.observation_space.shape[0], int(env.action_space.n))
    memory = Memory(config.memory.size, env.observation_space.shape[0], rng)
    batch, begin = int(config.memory.batch), int(config.memory.start)
    obs, _ = env.reset(seed=0)
    #: setup net=agent.net
    start = time.perf_counter()
    episodes, total = [], 0.0
    for step in range(steps):
        explore = rng.random() < max(0.05, 1.0 - step / 5000)
        action = int(rng.integers(env.action_space.n)) if explore else agent.act(obs)
        after, reward, terminated, truncated, _ = env.step(action)
        memory.add(obs, action, reward, after, terminated)
        obs, total = after, total + float(reward)
        #: step obs=obs reward=float(reward) count=step net=agent.net
        if terminated or truncated:
            episodes.append(total)
            #: episode count=len(episodes) reward=total steady=yes
            obs, total = env.reset()[0], 0.0
        if step >= begin:
            agent.update(*memory.draw(batch))
    print(f"mean return {np.mean(episodes[-5:]):.1f}")
    print(f"loop {time.perf_counter() - start:.3f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=7500)
    main(parser.parse_args().steps)
