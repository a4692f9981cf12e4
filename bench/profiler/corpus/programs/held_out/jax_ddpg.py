# type: ignore
"""DDPG in JAX on Pendulum, with a small class around the jitted functions."""

import argparse
import time

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

#: length --steps 6500
#: imports

#: globals


def init(key, sizes):
    keys = jax.random.split(key, len(sizes) - 1)
    pairs = zip(keys, sizes[:-1], sizes[1:], strict=True)
    return [{"w": jax.random.normal(k, (i, o)) / i**0.5, "b": jnp.zeros(o)} for k, i, o in pairs]


def mlp(params, x):
    for layer in params[:-1]:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


def actor_of(params, obs):
    return 2 * jnp.tanh(mlp(params, obs))


def critic_of(params, obs, action):
    return mlp(params, jnp.concatenate([obs, action], -1))


@jax.jit
def train_step(state, batch):
    obs, action, reward, following = jnp.split(batch, [3, 4, 5], axis=1)

    def critic_loss(critic):
        next_action = actor_of(state["target_actor"], following)
        goal = reward + 0.98 * critic_of(state["target_critic"], following, next_action)
        return ((critic_of(critic, obs, action) - goal) ** 2).mean()

    def actor_loss(actor):
        return -critic_of(state["critic"], obs, actor_of(actor, obs)).mean()

    new = dict(state)
    for name, function, rate in (("critic", critic_loss, 1e-3), ("actor", actor_loss, 3e-4)):
        grads = jax.grad(function)(state[name])
        scale = jax.tree.map(lambda s, g: 0.99 * s + 0.01 * g**2, state[f"{name}_scale"], grads)
        new[name] = jax.tree.map(
            lambda p, g, s, rate=rate: p - rate * g / (jnp.sqrt(s) + 1e-3),
            state[name],
            grads,
            scale,
        )
        new[f"{name}_scale"] = scale
        new[f"target_{name}"] = jax.tree.map(
            lambda t, p: 0.995 * t + 0.005 * p, state[f"target_{name}"], new[name]
        )
    return new


class Agent:
    def __init__(self, seed):
        first, second = jax.random.split(jax.random.key(seed))
        actor, critic = init(first, (3, 64, 64, 1)), init(second, (4, 64, 64, 1))
        zeros = jax.tree.map(jnp.zeros_like, (actor, critic))
        self.state = {
            "actor": actor,
            "critic": critic,
            "target_actor": actor,
            "target_critic": critic,
            "actor_scale": zeros[0],
            "critic_scale": zeros[1],
        }
        self.rng = np.random.default_rng(seed)
        self.choose = jax.jit(actor_of)
        self.memory, self.filled = np.zeros((50_000, 8), np.float32), 0

    def act(self, obs):
        noise = 0.2 * self.rng.normal(size=1)
        return np.clip(np.asarray(self.choose(self.state["actor"], obs)) + noise, -2, 2)

    def remember(self, *parts):
        self.memory[self.filled % len(self.memory)] = np.concatenate(parts)
        self.filled += 1
        #: step count=self.filled obs=parts[0] reward=float(parts[2][0]) steady=yes

    def learn(self):
        rows = self.rng.integers(0, min(self.filled, len(self.memory)), 64)
        #: sample count=self.filled steady=yes
        self.state = train_step(self.state, self.memory[rows])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=6500)
    args = parser.parse_args()
    env = gym.make("Pendulum-v1")
    #: wrap env=env copies=1
    agent, totals, total = Agent(0), [], 0.0
    obs, _ = env.reset(seed=0)
    #: setup
    clock = time.perf_counter()
    for step in range(args.steps):
        action = agent.act(obs)
        following, reward, _, truncated, _ = env.step(action)
        agent.remember(obs, action, [0.1 * reward], following)
        obs, total = following, total + reward
        if truncated:
            totals.append(total)
            #: episode reward=float(total) count=len(totals) obs=obs steady=yes
            obs, total = env.reset()[0], 0.0
        if step >= 300:
            agent.learn()
            #: update count=step reward=float(reward) steady=yes
    print(f"returns {totals[0]:.0f} to {totals[-1]:.0f}")
    print(f"loop {time.perf_counter() - clock:.3f} s")


if __name__ == "__main__":
    main()
