"""PPO in a single file, in the style of CleanRL's `ppo.py`, with its hyper-parameters.

python ppo.py --total_timesteps 100000
"""

import argparse
from dataclasses import dataclass, fields

import gymnasium as gym
import numpy as np
import torch
from torch import nn, optim
from torch.distributions import Categorical


@dataclass
class Args:
    env_id: str = "CartPole-v1"
    seed: int = 1
    total_timesteps: int = 500_000
    learning_rate: float = 2.5e-4
    num_envs: int = 4
    num_steps: int = 128
    gamma: float = 0.99
    gae_lambda: float = 0.95
    num_minibatches: int = 4
    update_epochs: int = 4
    clip_coef: float = 0.2
    ent_coef: float = 0.01
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5


def layer(inputs, outputs, gain=2**0.5):
    linear = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(linear.weight, gain)
    nn.init.zeros_(linear.bias)
    return linear


def perceptron(inputs, outputs, gain):
    hidden = [layer(inputs, 64), nn.Tanh(), layer(64, 64), nn.Tanh()]
    return nn.Sequential(*hidden, layer(64, outputs, gain))


class Agent(nn.Module):
    def __init__(self, envs):
        super().__init__()
        num_inputs = envs.single_observation_space.shape[0]
        self.critic = perceptron(num_inputs, 1, gain=1.0)
        self.actor = perceptron(num_inputs, envs.single_action_space.n, gain=0.01)

    def forward(self, obs, action=None):
        policy = Categorical(logits=self.actor(obs), validate_args=False)
        if action is None:
            action = policy.sample()
        return action, policy.log_prob(action), policy.entropy(), self.critic(obs).flatten()


def main(args):
    rng = np.random.default_rng(args.seed)
    torch.manual_seed(args.seed)
    envs = gym.vector.SyncVectorEnv(
        [
            lambda: gym.wrappers.RecordEpisodeStatistics(gym.make(args.env_id))
            for _ in range(args.num_envs)
        ]
    )
    agent = Agent(envs)
    optimizer = optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)

    shape = (args.num_steps, args.num_envs)
    obs = torch.zeros((*shape, *envs.single_observation_space.shape))
    actions = torch.zeros(shape, dtype=torch.long)
    logprobs, rewards, dones, values = (torch.zeros(shape) for _ in range(4))
    batch_size = args.num_steps * args.num_envs
    minibatch_size = batch_size // args.num_minibatches
    num_iterations = args.total_timesteps // batch_size
    next_obs = torch.as_tensor(envs.reset(seed=args.seed)[0])
    next_done = torch.zeros(args.num_envs)

    for iteration in range(num_iterations):
        # Anneal the learning rate.
        learning_rate = args.learning_rate * (1.0 - iteration / num_iterations)
        optimizer.param_groups[0]["lr"] = learning_rate

        # Collect a rollout.
        for step in range(args.num_steps):
            obs[step], dones[step] = next_obs, next_done
            with torch.no_grad():
                actions[step], logprobs[step], _, values[step] = agent(next_obs)
            new_obs, reward, terminated, truncated, infos = envs.step(actions[step].numpy())
            rewards[step] = torch.as_tensor(reward)
            next_obs = torch.as_tensor(new_obs)
            next_done = torch.as_tensor(terminated | truncated, dtype=torch.float32)
            if "episode" in infos:
                print_episodes((iteration * args.num_steps + step + 1) * args.num_envs, infos)

        # Compute the advantages.
        with torch.no_grad():
            advantages = torch.zeros(shape)
            value, done, advantage = agent(next_obs)[3], next_done, torch.zeros(args.num_envs)
            for t in reversed(range(args.num_steps)):
                discount = args.gamma * (1.0 - done)
                delta = rewards[t] + discount * value - values[t]
                advantage = advantages[t] = delta + discount * args.gae_lambda * advantage
                value, done = values[t], dones[t]

        # Update the agent.
        rollout = obs, actions, logprobs, advantages, advantages + values, values
        batch = [x.flatten(0, 1) for x in rollout]
        b_inds = np.arange(batch_size)
        for _ in range(args.update_epochs):
            rng.shuffle(b_inds)
            for start in range(0, batch_size, minibatch_size):
                minibatch = [x[b_inds[start : start + minibatch_size]] for x in batch]
                loss = ppo_loss(agent, minibatch, args)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
                optimizer.step()
    envs.close()
    return agent


def ppo_loss(agent, minibatch, args):
    obs, actions, logprobs, advantages, returns, values = minibatch
    _, newlogprob, entropy, newvalue = agent(obs, actions)
    ratio = (newlogprob - logprobs).exp()
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    clipped = ratio.clamp(1.0 - args.clip_coef, 1.0 + args.clip_coef)
    pg_loss = -torch.minimum(advantages * ratio, advantages * clipped).mean()
    near = values + (newvalue - values).clamp(-args.clip_coef, args.clip_coef)
    v_loss = 0.5 * torch.maximum((newvalue - returns) ** 2, (near - returns) ** 2).mean()
    return pg_loss - args.ent_coef * entropy.mean() + args.vf_coef * v_loss


def print_episodes(global_step, infos):
    for episode_return in infos["episode"]["r"][infos["_episode"]]:
        print(f"global_step={global_step}, episodic_return={episode_return:.0f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for field in fields(Args):
        parser.add_argument(f"--{field.name}", type=field.type, default=field.default)
    main(Args(**vars(parser.parse_args())))
