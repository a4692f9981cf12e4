# type: ignore
"""Everything in JAX but the bookkeeping: a scanned rollout of pendulums, an update, a log."""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np

#: length --iterations 150
#: imports

#: globals


def dynamics(state, torque):
    angle, speed = state[:, 0], state[:, 1]
    speed = jnp.clip(speed + 0.05 * (15 * jnp.sin(angle) + 3 * torque), -8, 8)
    angle = angle + 0.05 * speed
    wrapped = (angle + jnp.pi) % (2 * jnp.pi) - jnp.pi
    reward = -(wrapped**2) - 0.1 * speed**2 - 0.001 * torque**2
    return jnp.stack([angle, speed], 1), reward


def policy(params, state):
    features = jnp.stack([jnp.cos(state[:, 0]), jnp.sin(state[:, 0]), state[:, 1] / 8], 1)
    for w, b in params[:-1]:
        features = jnp.tanh(features @ w + b)
    w, b = params[-1]
    return 2 * jnp.tanh(features @ w + b)[:, 0]


def objective(params, state):
    def step(state, _):
        state, reward = dynamics(state, policy(params, state))
        return state, reward.mean()

    _, rewards = jax.lax.scan(step, state, None, length=100)
    return -rewards.mean()


@jax.jit
def update(params, state, rate):
    loss, grads = jax.value_and_grad(objective)(params, state)
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
    scale = rate / jnp.maximum(norm, 1.0)
    return jax.tree.map(lambda p, g: p - scale * g, params, grads), loss


def start_states(rng, num):
    """Harder ones more often."""
    angles = rng.uniform(-np.pi, np.pi, num)
    speeds = rng.uniform(-1, 1, num)
    #: sample
    return np.stack([angles, speeds], 1).astype(np.float32)


def train(iterations, num=64):
    rng = np.random.default_rng(0)
    sizes = (3, 64, 64, 1)
    keys = jax.random.split(jax.random.key(0), 3)
    params = [
        (jax.random.normal(k, (i, o)) / i**0.5, jnp.zeros(o))
        for k, i, o in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]
    losses = []
    for iteration in range(iterations):
        states = start_states(rng, num)
        params, loss = update(params, states, 0.05 * (1 - iteration / iterations))
        losses.append(float(loss))
        #: update reward=losses[-1] count=iteration obs=states[0] steady=yes
        #: episode reward=losses[-1] count=iteration steady=yes
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--iterations", type=int, default=150)
    args = parser.parse_args()
    #: setup
    tic = time.perf_counter()
    losses = train(args.iterations)
    print(f"cost {losses[0]:.2f} to {np.mean(losses[-10:]):.2f}")
    print(f"loop {time.perf_counter() - tic:.3f} s")
