# type: ignore
"""DQN for CartPole in JAX: pure functions, one jitted update."""

import argparse
import itertools
import time

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

#: length --total-steps 7200
#: imports

#: globals


def init(key, sizes):
    params = []
    for n_in, n_out in itertools.pairwise(sizes):
        key, sub = jax.random.split(key)
        params.append((jax.random.normal(sub, (n_in, n_out)) / n_in**0.5, jnp.zeros(n_out)))
    return params


def q_values(params, x):
    for w, b in params[:-1]:
        x = jax.nn.relu(x @ w + b)
    w, b = params[-1]
    return x @ w + b


@jax.jit
def greedy(params, obs):
    return q_values(params, obs).argmax()


def loss_fn(params, target, batch):
    obs, action, reward, following, end = jnp.split(batch, [4, 5, 6, 10], axis=1)
    goal = reward[:, 0] + 0.98 * (1 - end[:, 0]) * q_values(target, following).max(1)
    rows = jnp.arange(len(batch))
    value = q_values(params, obs)[rows, action[:, 0].astype(jnp.int32)]
    return jnp.mean((value - jax.lax.stop_gradient(goal)) ** 2)


@jax.jit
def update(params, momentum, target, batch):
    grads = jax.grad(loss_fn)(params, target, batch)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
    params = jax.tree.map(lambda p, m: p - 1e-3 * m, params, momentum)
    return params, momentum


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--total-steps", type=int, default=7200)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)
    params = init(jax.random.key(args.seed), (4, 128, 128, 2))
    momentum, target = jax.tree.map(jnp.zeros_like, params), params
    env = gym.make("CartPole-v1")
    #: wrap env=env copies=1
    memory = np.zeros((20_000, 11), np.float32)
    obs, _ = env.reset(seed=args.seed)
    total, totals = 0.0, []
    #: setup
    start = time.perf_counter()
    for step in range(args.total_steps):
        if rng.random() < max(0.1, 1 - step / 4000):
            action = int(rng.integers(2))
        else:
            action = int(greedy(params, obs))
        following, reward, terminated, truncated, _ = env.step(action)
        row = memory[step % len(memory)]
        row[:4], row[4], row[5], row[6:10], row[10] = obs, action, reward, following, terminated
        obs, total = following, total + reward
        #: step obs=obs reward=reward count=step steady=yes
        if terminated or truncated:
            totals.append(total)
            #: episode reward=total count=len(totals) obs=obs steady=yes
            obs, total = env.reset()[0], 0.0
        if step >= 500:
            rows = rng.integers(0, min(step, len(memory)), 128)
            params, momentum = update(params, momentum, target, memory[rows])
            #: update reward=reward count=step steady=yes
            if step % 200 == 0:
                target = params
    jax.block_until_ready(params)
    print(f"{len(totals)} episodes, the last {np.mean(totals[-20:]):.1f}")
    print(f"loop {time.perf_counter() - start:.3f} s")


if __name__ == "__main__":
    main()
