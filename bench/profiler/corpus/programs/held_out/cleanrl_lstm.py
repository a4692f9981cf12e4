# type: ignore
"""Recurrent PPO in one file: remember which of two doors was shown at the start."""

import argparse
import random
import time

import gymnasium as gym
import numpy as np
import torch
from torch import nn

#: length --total-timesteps 16384
#: imports

torch.set_num_threads(1)

#: globals


class Doors(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.door, self.t = int(self.np_random.integers(2)), 0
        #: reset count=self.t
        return self._obs(), {}

    def _obs(self):
        shown = (1.0 if self.door else -1.0) if self.t == 0 else 0.0
        noise = self.np_random.uniform(-0.2, 0.2)
        return np.array([shown, self.t / 12, float(self.t == 11), noise], np.float32)

    def step(self, action):
        self.t += 1
        end = self.t == 12
        reward = (1.0 if int(action) == self.door else -1.0) if end else 0.0
        obs = self._obs()
        #: env obs=obs reward=reward count=self.t
        return obs, reward, end, False, {}


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 64), nn.Tanh())
        self.lstm = nn.LSTM(64, 64)
        self.actor, self.critic = nn.Linear(64, 2), nn.Linear(64, 1)

    def unroll(self, obs, starts, state):
        hidden, out = self.encoder(obs), []
        for features, start in zip(hidden, starts, strict=True):
            keep = (1.0 - start).view(1, -1, 1)
            y, state = self.lstm(features.unsqueeze(0), (keep * state[0], keep * state[1]))
            out.append(y)
        return torch.cat(out), state


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--total-timesteps", type=int, default=16384)
    args = parser.parse_args()
    num_envs, num_steps, num_minibatches = 8, 64, 2
    random.seed(1)
    torch.manual_seed(1)

    def make_env():
        env = Doors()
        #: wrap env=env copies=8
        return env

    envs = gym.vector.SyncVectorEnv(
        [make_env] * num_envs, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP
    )
    agent = Agent()
    optimizer = torch.optim.Adam(agent.parameters(), lr=1e-3, eps=1e-5)
    obs = torch.zeros(num_steps, num_envs, 4)
    actions, logprobs, rewards, starts, values = torch.zeros(5, num_steps, num_envs)
    next_obs = torch.tensor(envs.reset(seed=1)[0])
    next_start = torch.zeros(num_envs)
    state = (torch.zeros(1, num_envs, 64), torch.zeros(1, num_envs, 64))
    #: setup net=agent
    start_time, global_step, finished = time.perf_counter(), 0, []
    for update in range(args.total_timesteps // (num_envs * num_steps)):
        first = tuple(x.clone() for x in state)
        for step in range(num_steps):
            global_step += num_envs
            obs[step], starts[step] = next_obs, next_start
            with torch.no_grad():
                hidden, state = agent.unroll(next_obs.unsqueeze(0), next_start.unsqueeze(0), state)
                policy = torch.distributions.Categorical(logits=agent.actor(hidden[0]))
                action = policy.sample()
                logprobs[step], values[step] = (
                    policy.log_prob(action),
                    agent.critic(hidden[0])[:, 0],
                )
            actions[step] = action
            new_obs, reward, end, _, _ = envs.step(action.numpy())
            rewards[step] = torch.tensor(reward, dtype=torch.float32)
            next_obs, next_start = torch.tensor(new_obs), torch.tensor(end, dtype=torch.float32)
            finished.extend(reward[end].tolist())
            #: step obs=new_obs[0] reward=float(reward[0]) count=global_step net=agent.encoder
        with torch.no_grad():
            hidden, _ = agent.unroll(next_obs.unsqueeze(0), next_start.unsqueeze(0), state)
            following, last = agent.critic(hidden[0])[:, 0], torch.zeros(num_envs)
        advantages, alive = torch.zeros(num_steps, num_envs), 1.0 - next_start
        for t in reversed(range(num_steps)):
            delta = rewards[t] + 0.99 * following * alive - values[t]
            advantages[t] = last = delta + 0.99 * 0.95 * alive * last
            following, alive = values[t], 1.0 - starts[t]
        returns = advantages + values
        for epoch in range(3):
            order = np.random.default_rng(update * 3 + epoch).permutation(num_envs)
            for columns in np.array_split(order, num_minibatches):
                rows = torch.from_numpy(columns)
                part = tuple(x[:, rows] for x in first)
                hidden, _ = agent.unroll(obs[:, rows], starts[:, rows], part)
                policy = torch.distributions.Categorical(logits=agent.actor(hidden))
                ratio = (policy.log_prob(actions[:, rows]) - logprobs[:, rows]).exp()
                gain = advantages[:, rows]
                gain = (gain - gain.mean()) / (gain.std() + 1e-8)
                clipped = torch.max(-gain * ratio, -gain * ratio.clamp(0.8, 1.2)).mean()
                value_loss = (agent.critic(hidden)[..., 0] - returns[:, rows]).square().mean()
                loss = clipped + 0.5 * value_loss - 0.01 * policy.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
                #: update count=update net=agent.encoder
    print(f"mean return {np.mean(finished[-200:]):.2f}")
    print(f"loop {time.perf_counter() - start_time:.3f} s")
