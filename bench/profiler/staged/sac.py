"""SAC in one piece: sac.py ENV_ID STEPS TIMES_FILE."""

import sys

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn, optim

from bench.profiler.staged.dqn import ReplayBuffer
from bench.profiler.staged.timers import begin, lap


class SoftQNetwork(nn.Module):
    def __init__(self, size, num_actions):
        super().__init__()
        self.fc1 = nn.Linear(size + num_actions, 256)
        self.fc2 = nn.Linear(256, 256)
        self.fc3 = nn.Linear(256, 1)

    def forward(self, obs, action):
        x = torch.cat([obs, action], 1)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


class Actor(nn.Module):
    def __init__(self, size, space):
        super().__init__()
        num_actions = int(np.prod(space.shape))
        self.fc1, self.fc2 = nn.Linear(size, 256), nn.Linear(256, 256)
        self.fc_mean, self.fc_logstd = nn.Linear(256, num_actions), nn.Linear(256, num_actions)
        self.register_buffer("scale", torch.tensor((space.high - space.low) / 2.0))

    def forward(self, obs):
        x = F.relu(self.fc2(F.relu(self.fc1(obs))))
        return self.fc_mean(x), -5 + 3.5 * (torch.tanh(self.fc_logstd(x)) + 1)

    def get_action(self, obs):
        mean, log_std = self(obs)
        law = torch.distributions.Normal(mean, log_std.exp())
        drawn = law.rsample()
        squashed = torch.tanh(drawn)
        log_prob = law.log_prob(drawn) - torch.log(self.scale * (1 - squashed.pow(2)) + 1e-6)
        return squashed * self.scale, log_prob.sum(1, keepdim=True)


if __name__ == "__main__":
    env_id, num_steps = sys.argv[1], int(sys.argv[2])
    np.random.seed(1)
    torch.manual_seed(1)
    torch.set_num_threads(1)
    envs = gym.vector.SyncVectorEnv([lambda: gym.make(env_id)])
    shape, space = envs.single_observation_space.shape, envs.single_action_space
    size, num_actions = int(np.prod(shape)), int(np.prod(space.shape))
    actor = Actor(size, space)
    qf1, qf2 = SoftQNetwork(size, num_actions), SoftQNetwork(size, num_actions)
    target1, target2 = SoftQNetwork(size, num_actions), SoftQNetwork(size, num_actions)
    target1.load_state_dict(qf1.state_dict())
    target2.load_state_dict(qf2.state_dict())
    q_optimizer = optim.Adam([*qf1.parameters(), *qf2.parameters()], lr=1e-3)
    actor_optimizer = optim.Adam(actor.parameters(), lr=3e-4)
    buffer = ReplayBuffer(100_000, shape)
    buffer.actions = np.zeros((100_000, num_actions), np.float32)
    begin()
    obs, _ = envs.reset(seed=1)
    lap("env")

    for step in range(num_steps):
        if step < 200:
            actions = envs.action_space.sample()
        else:
            actions, _ = actor.get_action(torch.Tensor(obs))
            actions = actions.detach().numpy()
        lap("act")
        next_obs, rewards, terminated, truncated, _ = envs.step(actions)
        lap("env")
        buffer.add(obs, next_obs, actions, rewards, terminated)
        lap("replay")
        obs = next_obs
        if step <= 200:
            continue
        lap("other")
        data_obs, data_next, data_actions, data_rewards, data_dones = buffer.sample(256)
        lap("replay")
        with torch.no_grad():
            next_actions, next_log_prob = actor.get_action(data_next)
            least = torch.min(target1(data_next, next_actions), target2(data_next, next_actions))
            soft = (least - 0.2 * next_log_prob).view(-1)
            wanted = data_rewards + (1 - data_dones) * 0.99 * soft
        q_loss = F.mse_loss(qf1(data_obs, data_actions).view(-1), wanted)
        q_loss = q_loss + F.mse_loss(qf2(data_obs, data_actions).view(-1), wanted)
        q_optimizer.zero_grad()
        q_loss.backward()
        q_optimizer.step()
        if step % 2 == 0:
            for _ in range(2):
                chosen, log_prob = actor.get_action(data_obs)
                least = torch.min(qf1(data_obs, chosen), qf2(data_obs, chosen))
                actor_loss = (0.2 * log_prob - least).mean()
                actor_optimizer.zero_grad()
                actor_loss.backward()
                actor_optimizer.step()
        for own, target in ((qf1, target1), (qf2, target2)):
            for one, kept in zip(own.parameters(), target.parameters(), strict=True):
                kept.data.copy_(0.005 * one.data + 0.995 * kept.data)
        lap("update")
    envs.close()
