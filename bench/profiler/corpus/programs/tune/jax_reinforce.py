# type: ignore
"""REINFORCE with JAX; the environment is a batch of carts in NumPy."""

import argparse
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

#: length --iterations 300
#: imports

parser = argparse.ArgumentParser()
parser.add_argument("--iterations", type=int, default=300)
parser.add_argument("--carts", type=int, default=128)
parser.add_argument("--horizon", type=int, default=100)
args = parser.parse_args()

#: globals


class Carts:
    def __init__(self, num, seed):
        self.num, self.rng = num, np.random.default_rng(seed)

    def reset(self):
        self.state = self.rng.uniform(-1, 1, (self.num, 3)).astype(np.float32)
        #: reset obs=self.state[0]
        return self.state

    def step(self, push):
        x, v, goal = self.state.T
        v = 0.9 * v + 0.2 * (2.0 * push - 1.0)
        self.state = np.stack([x + 0.1 * v, v, goal], axis=1).astype(np.float32)
        reward = -np.abs(self.state[:, 0] - goal)
        #: env obs=self.state[0] reward=float(reward[0])
        return self.state, reward


@jax.jit
def act(params, obs, uniform):
    logits = jnp.tanh(obs @ params["hidden"] + params["bias"]) @ params["out"]
    return uniform < jax.nn.sigmoid(logits[:, 0])


@partial(jax.jit, donate_argnums=0)
def improve(params, obs, actions, rewards):
    powers = 0.97 ** jnp.arange(len(rewards))[:, None]
    returns = jnp.cumsum((rewards * powers)[::-1], 0)[::-1] / powers
    returns = (returns - returns.mean(1, keepdims=True)) / (returns.std(1, keepdims=True) + 1e-6)

    def loss(params):
        logits = (jnp.tanh(obs @ params["hidden"] + params["bias"]) @ params["out"])[..., 0]
        log_probs = jax.nn.log_sigmoid(jnp.where(actions, logits, -logits))
        return -(log_probs * returns).mean()

    grads = jax.grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.3 * g, params, grads)


carts = Carts(args.carts, 0)
key = jax.random.key(1)
params = {
    "hidden": 0.5 * jax.random.normal(key, (3, 64)),
    "bias": jnp.zeros(64),
    "out": jnp.zeros((64, 1)),
}
history = []
#: setup
begin = time.perf_counter()
for iteration in range(args.iterations):
    obs = carts.reset()
    uniforms = carts.rng.random((args.horizon, args.carts), np.float32)
    seen = np.zeros((args.horizon, args.carts, 3), np.float32)
    actions = np.zeros((args.horizon, args.carts), bool)
    rewards = np.zeros((args.horizon, args.carts), np.float32)
    for t in range(args.horizon):
        seen[t] = obs
        actions[t] = act(params, obs, uniforms[t])
        obs, rewards[t] = carts.step(actions[t])
        #: step obs=obs[0] reward=float(rewards[t,0]) count=t
    params = improve(params, seen, actions, rewards)
    history.append(float(rewards.mean()))
    #: update reward=history[-1] count=iteration obs=obs[0] steady=yes
print(f"mean reward {history[0]:.3f} to {history[-1]:.3f}")
print(f"loop {time.perf_counter() - begin:.3f} s")
