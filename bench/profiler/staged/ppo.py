"""PPO in one piece, discrete or continuous: ppo.py ENV_ID ITERATIONS TIMES_FILE."""

import sys

import gymnasium as gym
import numpy as np
import torch
from torch import nn, optim
from torch.distributions import Categorical, Normal

from bench.profiler.staged.timers import begin, lap


def layer(inputs, outputs, gain=np.sqrt(2)):
    one = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(one.weight, gain)
    nn.init.zeros_(one.bias)
    return one


def perceptron(inputs, outputs, gain):
    return nn.Sequential(
        layer(inputs, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, outputs, gain)
    )


class Agent(nn.Module):
    def __init__(self, envs):
        super().__init__()
        size = int(np.prod(envs.single_observation_space.shape))
        space = envs.single_action_space
        self.is_discrete = isinstance(space, gym.spaces.Discrete)
        outputs = int(space.n) if self.is_discrete else int(np.prod(space.shape))
        self.critic = perceptron(size, 1, 1.0)
        self.actor = perceptron(size, outputs, 0.01)
        self.log_std = nn.Parameter(torch.zeros(1, outputs))

    def get_value(self, obs):
        return self.critic(obs)

    def get_action_and_value(self, obs, action=None):
        outputs = self.actor(obs)
        if self.is_discrete:
            law = Categorical(logits=outputs)
        else:
            law = Normal(outputs, self.log_std.expand_as(outputs).exp())
        if action is None:
            action = law.sample()
        log_prob, entropy = law.log_prob(action), law.entropy()
        if not self.is_discrete:
            log_prob, entropy = log_prob.sum(1), entropy.sum(1)
        return action, log_prob, entropy, self.critic(obs)


if __name__ == "__main__":
    env_id, num_iterations = sys.argv[1], int(sys.argv[2])
    num_envs, num_steps, num_minibatches = 4, 128, 4
    batch_size = num_envs * num_steps
    torch.manual_seed(1)
    np.random.seed(1)
    torch.set_num_threads(1)
    envs = gym.vector.SyncVectorEnv([lambda: gym.make(env_id) for _ in range(num_envs)])
    agent = Agent(envs)
    optimizer = optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)

    obs = torch.zeros((num_steps, num_envs, *envs.single_observation_space.shape))
    actions = torch.zeros((num_steps, num_envs, *envs.single_action_space.shape))
    log_probs = torch.zeros((num_steps, num_envs))
    rewards = torch.zeros((num_steps, num_envs))
    dones = torch.zeros((num_steps, num_envs))
    values = torch.zeros((num_steps, num_envs))
    begin()
    next_obs, _ = envs.reset(seed=1)
    lap("env")
    next_obs, next_done = torch.Tensor(next_obs), torch.zeros(num_envs)

    for _iteration in range(num_iterations):
        lap("other")
        for step in range(num_steps):
            obs[step] = next_obs
            dones[step] = next_done
            lap("replay")
            with torch.no_grad():
                action, log_prob, _, value = agent.get_action_and_value(next_obs)
            given = action.numpy()
            lap("act")
            values[step] = value.flatten()
            actions[step] = action
            log_probs[step] = log_prob
            lap("replay")
            next_obs, reward, terminated, truncated, _ = envs.step(given)
            lap("env")
            done = np.logical_or(terminated, truncated)
            next_obs, next_done = torch.Tensor(next_obs), torch.Tensor(done)
            lap("other")
            rewards[step] = torch.tensor(reward).view(-1)
            lap("replay")

        with torch.no_grad():
            next_value = agent.get_value(next_obs).reshape(1, -1)
            advantages = torch.zeros_like(rewards)
            last = 0
            for t in reversed(range(num_steps)):
                going_on = 1.0 - (next_done if t == num_steps - 1 else dones[t + 1])
                after = next_value if t == num_steps - 1 else values[t + 1]
                delta = rewards[t] + 0.99 * after * going_on - values[t]
                last = delta + 0.99 * 0.95 * going_on * last
                advantages[t] = last
            returns = advantages + values

        flat_obs = obs.reshape((-1, *envs.single_observation_space.shape))
        flat_actions = actions.reshape((-1, *envs.single_action_space.shape))
        flat_log_probs, flat_values = log_probs.reshape(-1), values.reshape(-1)
        flat_advantages, flat_returns = advantages.reshape(-1), returns.reshape(-1)
        order = np.arange(batch_size)
        for _epoch in range(4):
            np.random.shuffle(order)
            for start in range(0, batch_size, batch_size // num_minibatches):
                rows = order[start : start + batch_size // num_minibatches]
                _, new_log_prob, entropy, new_value = agent.get_action_and_value(
                    flat_obs[rows], flat_actions[rows]
                )
                log_ratio = new_log_prob - flat_log_probs[rows]
                ratio = log_ratio.exp()
                chosen = flat_advantages[rows]
                chosen = (chosen - chosen.mean()) / (chosen.std() + 1e-8)
                policy_loss = torch.max(
                    -chosen * ratio, -chosen * torch.clamp(ratio, 0.8, 1.2)
                ).mean()
                value_loss = 0.5 * ((new_value.view(-1) - flat_returns[rows]) ** 2).mean()
                loss = policy_loss - 0.01 * entropy.mean() + 0.5 * value_loss
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
        lap("update")
    envs.close()
