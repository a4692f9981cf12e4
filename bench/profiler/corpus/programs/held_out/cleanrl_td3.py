# type: ignore
"""TD3 on Hopper, the short way."""

import argparse
import copy
import time

import gymnasium as gym
import numpy as np
import torch
from torch import nn, optim

#: length --total-steps 2100
#: imports

parser = argparse.ArgumentParser()
parser.add_argument("--total-steps", type=int, default=2100)
parser.add_argument("--warm-up", type=int, default=600)
parser.add_argument("--policy-delay", type=int, default=2)
parser.add_argument("--seed", type=int, default=5)
args = parser.parse_args()

torch.set_num_threads(1)
torch.manual_seed(args.seed)
rng = np.random.default_rng(args.seed)

#: globals

env = gym.make("Hopper-v5")
#: wrap env=env copies=1
OBS, ACT = env.observation_space.shape[0], env.action_space.shape[0]


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(OBS + ACT, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1)
        )

    def forward(self, obs, act):
        return self.net(torch.cat([obs, act], 1)).squeeze(1)


actor = nn.Sequential(
    nn.Linear(OBS, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, ACT), nn.Tanh()
)
critics = nn.ModuleList([Critic(), Critic()])
nets = nn.ModuleList([actor, critics])
averaged = copy.deepcopy(nets).requires_grad_(False)
target_actor, target_critics = averaged[0], averaged[1]
actor_opt = optim.Adam(actor.parameters(), 3e-4, fused=True)
critic_opt = optim.Adam(critics.parameters(), 3e-4, fused=True)

obs_buf = torch.zeros((args.total_steps, OBS))
next_buf = torch.zeros((args.total_steps, OBS))
act_buf = torch.zeros((args.total_steps, ACT))
rew_buf = torch.zeros(args.total_steps)
end_buf = torch.zeros(args.total_steps)

obs, _ = env.reset(seed=args.seed)
obs = torch.from_numpy(obs).float()
score, scores = 0.0, []
#: setup net=actor
started = time.perf_counter()
for step in range(args.total_steps):
    if step < args.warm_up:
        action = torch.from_numpy(rng.uniform(-1, 1, ACT)).float()
    else:
        with torch.no_grad():
            action = (actor(obs) + 0.1 * torch.randn(ACT)).clamp(-1, 1)
    raw_obs, reward, terminated, truncated, _ = env.step(action.numpy())
    next_obs = torch.from_numpy(raw_obs).float()
    obs_buf[step], next_buf[step], act_buf[step] = obs, next_obs, action
    rew_buf[step], end_buf[step] = reward, terminated
    obs = next_obs
    score += reward
    #: step obs=raw_obs reward=reward count=step net=actor steady=yes
    if terminated or truncated:
        scores.append(score)
        score = 0.0
        obs = torch.from_numpy(env.reset()[0]).float()
        #: episode reward=scores[-1] count=len(scores) net=actor steady=yes
    if step < args.warm_up:
        continue

    rows = torch.randint(0, step, (100,))
    o, a, r, o2, end = obs_buf[rows], act_buf[rows], rew_buf[rows], next_buf[rows], end_buf[rows]
    with torch.no_grad():
        noise = (0.2 * torch.randn_like(a)).clamp(-0.5, 0.5)
        a2 = (target_actor(o2) + noise).clamp(-1, 1)
        q2 = torch.min(target_critics[0](o2, a2), target_critics[1](o2, a2))
        goal = r + 0.99 * (1 - end) * q2
    loss = sum((critic(o, a) - goal).pow(2).mean() for critic in critics)
    critic_opt.zero_grad()
    loss.backward()
    critic_opt.step()
    #: update reward=reward count=step net=critics steady=yes
    if step % args.policy_delay == 0:
        policy_loss = -critics[0](o, actor(o)).mean()
        actor_opt.zero_grad()
        policy_loss.backward()
        actor_opt.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(averaged.parameters()), list(nets.parameters()), 0.005)

print(f"{len(scores)} episodes, mean {np.mean(scores):.1f}")
print(f"loop {time.perf_counter() - started:.3f} s")
