# type: ignore
"""PPO in JAX on Gymnasium's CartPole, vectorised."""

import argparse
import time

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

#: length --updates 32
#: imports

#: globals


def dense(key, n_in, n_out, scale=1.0):
    return {"w": scale * jax.random.normal(key, (n_in, n_out)) / n_in**0.5, "b": jnp.zeros(n_out)}


def init(key):
    keys = jax.random.split(key, 3)
    return {
        "body": dense(keys[0], 4, 64),
        "pi": dense(keys[1], 64, 2, 0.1),
        "v": dense(keys[2], 64, 1),
    }


def forward(params, obs):
    hidden = jnp.tanh(obs @ params["body"]["w"] + params["body"]["b"])
    logits = hidden @ params["pi"]["w"] + params["pi"]["b"]
    return jax.nn.log_softmax(logits), (hidden @ params["v"]["w"] + params["v"]["b"])[..., 0]


@jax.jit
def act(params, obs, uniform):
    log_probs, value = forward(params, obs)
    action = (uniform > jnp.exp(log_probs[:, 0])).astype(jnp.int32)
    taken = jnp.take_along_axis(log_probs, action[:, None], 1)[:, 0]
    return jnp.stack([action.astype(jnp.float32), taken, value])


@jax.jit
def advantages(rewards, values, ends, last):
    def back(carry, row):
        running, following = carry
        reward, value, end = row
        running = reward + 0.99 * (1 - end) * following - value + 0.94 * (1 - end) * running
        return (running, value), running

    start = (jnp.zeros_like(last), last)
    return jax.lax.scan(back, start, (rewards, values, ends), reverse=True)[1]


def loss(params, batch):
    log_probs, value = forward(params, batch["obs"])
    taken = jnp.take_along_axis(log_probs, batch["action"][:, None], 1)[:, 0]
    ratio = jnp.exp(taken - batch["old"])
    adv = (batch["adv"] - batch["adv"].mean()) / (batch["adv"].std() + 1e-6)
    gain = jnp.minimum(ratio * adv, jnp.clip(ratio, 0.8, 1.2) * adv).mean()
    return 0.5 * ((value - batch["goal"]) ** 2).mean() - gain


@jax.jit
def update(params, velocity, batch):
    grads = jax.grad(loss)(params, batch)
    velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)
    return jax.tree.map(lambda p, v: p - 3e-3 * v, params, velocity), velocity


def make():
    env = gym.make("CartPole-v1")
    #: wrap env=env copies=8
    return env


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--updates", type=int, default=32)
    args = parser.parse_args()
    envs = gym.vector.SyncVectorEnv([make] * 8)
    rng = np.random.default_rng(0)
    params = init(jax.random.key(0))
    velocity = jax.tree.map(jnp.zeros_like, params)
    obs, _ = envs.reset(seed=0)
    lengths = []
    #: setup
    started = time.perf_counter()
    for number in range(args.updates):
        uniforms = rng.random((128, 8), np.float32)
        seen = np.zeros((128, 8, 4), np.float32)
        told = np.zeros((128, 3, 8), np.float32)
        rewards, ends = np.zeros((2, 128, 8), np.float32)
        for t in range(128):
            seen[t] = obs
            told[t] = act(params, obs, uniforms[t])
            obs, rewards[t], terminated, truncated, _ = envs.step(told[t, 0].astype(np.int64))
            ends[t] = terminated | truncated
            #: step obs=obs[0] reward=float(rewards[t,0]) count=t
        adv = np.asarray(advantages(rewards, told[:, 2], ends, told[-1, 2]))
        columns = {
            "obs": seen.reshape(-1, 4),
            "action": told[:, 0].reshape(-1).astype(np.int32),
            "old": told[:, 1].reshape(-1),
            "adv": adv.reshape(-1),
            "goal": (adv + told[:, 2]).reshape(-1),
        }
        for _ in range(8):
            for rows in rng.permutation(1024).reshape(4, 256):
                batch = {name: column[rows] for name, column in columns.items()}
                params, velocity = update(params, velocity, batch)
                #: update count=number reward=float(number)
        lengths.append(1024 / max(1.0, float(ends.sum())))
        #: episode reward=lengths[-1] count=number obs=obs[0] steady=yes
    print(f"length of episodes {lengths[0]:.0f} to {lengths[-1]:.0f}")
    print(f"loop {time.perf_counter() - started:.3f} s")


if __name__ == "__main__":
    main()
