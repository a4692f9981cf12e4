# type: ignore
"""PPO for CartPole in one file."""

import argparse
import time

import gymnasium as gym
import numpy as np
import torch
from torch import nn, optim
from torch.distributions import Categorical

#: length --updates 42
#: imports

parser = argparse.ArgumentParser()
parser.add_argument("--updates", type=int, default=42)
parser.add_argument("--num-envs", type=int, default=8)
parser.add_argument("--num-steps", type=int, default=128)
parser.add_argument("--lr", type=float, default=2.5e-4)
parser.add_argument("--seed", type=int, default=1)
args = parser.parse_args()

torch.set_num_threads(1)
torch.manual_seed(args.seed)
GAMMA, LAMBDA, CLIP, EPOCHS, MINIBATCHES = 0.99, 0.95, 0.2, 4, 4

#: globals


def layer(n_in, n_out, std=1.41):
    linear = nn.Linear(n_in, n_out)
    nn.init.orthogonal_(linear.weight, std)
    nn.init.zeros_(linear.bias)
    return linear


class ActorCritic(nn.Module):
    def __init__(self, obs_dim, num_actions):
        super().__init__()
        self.critic = nn.Sequential(
            layer(obs_dim, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, 1, 1.0)
        )
        self.actor = nn.Sequential(
            layer(obs_dim, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, num_actions, 0.01)
        )

    def forward(self, x, action=None):
        dist = Categorical(logits=self.actor(x), validate_args=False)
        if action is None:
            action = dist.sample()
        return action, dist.log_prob(action), dist.entropy(), self.critic(x).squeeze(-1)


def make_env():
    env = gym.make("CartPole-v1")
    #: wrap env=env copies=8
    return env


envs = gym.vector.SyncVectorEnv([make_env for _ in range(args.num_envs)])
agent = ActorCritic(4, 2)
optimizer = optim.Adam(agent.parameters(), lr=args.lr, eps=1e-5, fused=True)

shape = (args.num_steps, args.num_envs)
obs_buf = torch.zeros((*shape, 4))
act_buf = torch.zeros(shape, dtype=torch.long)
logp_buf, rew_buf, done_buf, val_buf = (torch.zeros(shape) for _ in range(4))

next_obs, _ = envs.reset(seed=args.seed)
next_obs = torch.from_numpy(next_obs)
next_done = torch.zeros(args.num_envs)
global_step = 0
finished = 0
#: setup net=agent

start = time.perf_counter()
for update in range(1, args.updates + 1):
    optimizer.param_groups[0]["lr"] = args.lr * (1 - (update - 1) / args.updates)
    for t in range(args.num_steps):
        global_step += args.num_envs
        obs_buf[t], done_buf[t] = next_obs, next_done
        with torch.no_grad():
            action, logp, _, value = agent(next_obs)
        act_buf[t], logp_buf[t], val_buf[t] = action, logp, value
        state, reward, terminated, truncated, info = envs.step(action.numpy())
        rew_buf[t] = torch.from_numpy(reward)
        next_obs = torch.from_numpy(state)
        next_done = torch.from_numpy((terminated | truncated).astype(np.float32))
        finished += int(next_done.sum())
        #: step obs=state[0] reward=float(reward[0]) count=t batch=state net=agent

    with torch.no_grad():
        next_value = agent.critic(next_obs).squeeze(-1)
        advantages = torch.zeros_like(rew_buf)
        last = torch.zeros(args.num_envs)
        for t in reversed(range(args.num_steps)):
            is_last = t == args.num_steps - 1
            alive = 1.0 - (next_done if is_last else done_buf[t + 1])
            following = next_value if is_last else val_buf[t + 1]
            delta = rew_buf[t] + GAMMA * following * alive - val_buf[t]
            last = delta + GAMMA * LAMBDA * alive * last
            advantages[t] = last
        returns = advantages + val_buf

    flat_obs = obs_buf.reshape(-1, 4)
    flat_act, flat_logp = act_buf.reshape(-1), logp_buf.reshape(-1)
    flat_adv, flat_ret = advantages.reshape(-1), returns.reshape(-1)
    for _ in range(EPOCHS):
        order = torch.randperm(flat_adv.numel())
        for chosen in order.chunk(MINIBATCHES):
            _, logp, entropy, value = agent(flat_obs[chosen], flat_act[chosen])
            ratio = (logp - flat_logp[chosen]).exp()
            adv = flat_adv[chosen]
            adv = (adv - adv.mean()) / (adv.std() + 1e-8)
            clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
            policy_loss = -torch.min(adv * ratio, adv * clipped).mean()
            value_loss = 0.5 * (value - flat_ret[chosen]).pow(2).mean()
            loss = policy_loss + 0.5 * value_loss - 0.01 * entropy.mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
            #: update net=agent opt=optimizer loss=loss
    #: episode count=update net=agent opt=optimizer reward=float(rew_buf.mean()) steady=yes

print(f"{global_step} steps, {finished} episodes")
print(f"loop {time.perf_counter() - start:.3f} s")
