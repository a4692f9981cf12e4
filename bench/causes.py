"""Programs that are each slow for one reason, of a size that can be set.

    python bench/causes.py environment --size 4
    python bench/causes.py environment --size 4 --fixed
    hotloop profile bench/causes.py launch --size 64

- `environment`: four simulators, which are other programs, are stepped one after another; `size`:
  milliseconds of a step. Fixed: side by side.
- `transfer`: two cheap environments live in processes of their own; `size`: milliseconds of a step.
  Fixed: both in this process.
- `threads`: two workers, each with a thread for each core, which spin while they wait for each
  other; `size`: width of their networks, since small operations are not shared out. Fixed: one
  thread each.
- `acting`: a policy is asked for one action at a time, eight times a step; `size`: updates of
  something else a step. Fixed: once a step, for all eight.
- `start`: libraries are imported that nothing needs; `size`: seconds of work. Fixed: they are not.
  How long it takes is the size's alone: `--length` changes nothing.
- `decay`: the mean of all rewards so far is worked out anew at each step; `size`: rewards a step.
  Fixed: a running mean. It runs for twelve seconds at least: less tells nothing of what grows.
- `pegged`: one process collects, then learns; `size`: time of the one over that of the other.
  Fixed: another process collects what is learnt from next.
- `function`: discounted returns of lists, by a loop; `size`: episodes between two updates. Fixed:
  of all episodes at once, by NumPy.
- `launch`: updates of a small network by torch's modules, autograd and optimizer; `size`: its
  width. Fixed: the same arithmetic, written out in NumPy.

`--length` is about how many seconds the slow program takes. How much is done depends on length and
size alone, so the fixed program does as much. Of sizes, one end is next to no cause.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import os
import random
import time
from multiprocessing import get_context

# One thread for NumPy's products: a second would spin on a core that others need.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

BATCH = 64
# Of `compute`, on the machine that sizes were chosen on.
LOOPS_PER_MS = 20_000


def compute(ms):
    """Python at work for some time; counted, since waiting for a core is no work."""
    x = 1
    for _ in range(round(ms * LOOPS_PER_MS)):
        x = x * 5 % 1_000_003
    return x


def sleep(ms):
    """What a simulator in another program is to this one."""
    time.sleep(ms / 1e3)


def make_env(work, ms):
    """An environment whose step is `work(ms)`; Gymnasium is imported where one is needed alone."""
    import gymnasium

    class Simulator(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1.0, 1.0, (8,), np.float32)
        action_space = gymnasium.spaces.Discrete(4)
        obs = np.linspace(-1.0, 1.0, 8, dtype=np.float32)

        def reset(self, *, seed=None, options=None):
            return self.obs, {}

        def step(self, action):
            work(ms)
            return self.obs, 0.01 * float(action), False, False, {}

    return Simulator()


def make_envs(is_apart, num_envs, work, ms):
    """A vector environment, in this process or in one for each."""
    from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

    kind = AsyncVectorEnv if is_apart else SyncVectorEnv
    return kind([lambda: make_env(work, ms)] * num_envs)


class Network:
    """Two layers, their gradient and Adam in NumPy, in place on one vector of parameters."""

    def __init__(self, params, width):
        self.params, self.grads = params, np.zeros_like(params)
        self.weights, self.of_weights = self.views(params, width), self.views(self.grads, width)
        self.first, self.second = np.zeros_like(params), np.zeros_like(params)
        self.scratch, self.num_updates = np.zeros_like(params), 0

    @staticmethod
    def views(vector, width):
        """Weights and biases of both layers, in torch's order."""
        ends = np.cumsum([width * width, width, width * width])
        one, bias, two, other = np.split(vector, ends)
        return one.reshape(width, width), bias, two.reshape(width, width), other

    def forward(self, x):
        one, bias, two, other = self.weights
        self.hidden = x @ one.T
        self.hidden += bias
        np.maximum(self.hidden, 0.0, out=self.hidden)
        out = self.hidden @ two.T
        out += other
        return out

    def backward(self, x, of_out):
        one, bias, two, other = self.of_weights
        np.matmul(of_out.T, self.hidden, out=two)
        of_out.sum(0, out=other)
        of_hidden = of_out @ self.weights[2]
        of_hidden *= self.hidden > 0
        np.matmul(of_hidden.T, x, out=one)
        of_hidden.sum(0, out=bias)

    def adam(self, lr=1e-3):
        self.num_updates += 1
        scratch = self.scratch
        self.first *= 0.9
        np.multiply(self.grads, 0.1, out=scratch)
        self.first += scratch
        self.second *= 0.999
        np.multiply(self.grads, self.grads, out=scratch)
        scratch *= 0.001
        self.second += scratch
        np.sqrt(self.second, out=scratch)
        scratch *= (1 - 0.999**self.num_updates) ** -0.5
        scratch += 1e-8
        np.divide(self.first, scratch, out=scratch)
        scratch *= lr / (1 - 0.9**self.num_updates)
        self.params -= scratch

    def update(self, x, y):
        """The loss; three parts of about the same time, so that no function stands out."""
        error = self.forward(x)
        error -= y
        loss = np.vdot(error, error) / error.size
        error *= 2 / error.size
        self.backward(x, error)
        self.adam()
        return loss


class Learner:
    """Work that goes on beside a cause: updates of a network from fixed data."""

    def __init__(self, width):
        rng = np.random.default_rng(0)
        params = (0.05 * rng.normal(size=2 * width * (width + 1))).astype(np.float32)
        self.network = Network(params, width)
        self.x, self.y = rng.normal(size=(2, BATCH, width)).astype(np.float32)

    def update(self):
        return self.network.update(self.x, self.y)


def batches(num, width):
    """Of a small data set, again and again."""
    x, y = np.random.default_rng(0).normal(size=(2, 16, BATCH, width)).astype(np.float32)
    for i in range(num):
        yield x[i % 16], y[i % 16]


def torch_network(*widths):
    """Linear layers with ReLU between."""
    from torch import nn

    layers = [nn.Linear(*pair) for pair in itertools.pairwise(widths)]
    return nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU())))[:-1]


# --- the causes -----------------------------------------------------------------------------------


def environment(length, size, is_fixed):
    envs, learner = make_envs(is_fixed, 4, sleep, size), Learner(512)
    envs.reset()
    actions = np.zeros(4, np.int64)
    for _ in range(round(1000 * length / (4 + 4 * size))):
        envs.step(actions)
        learner.update()
    envs.close()


def transfer(length, size, is_fixed):
    envs = make_envs(not is_fixed, 2, compute, size)
    envs.reset()
    actions = np.zeros(2, np.int64)
    for _ in range(round(1000 * length / (0.3 + size))):
        envs.step(actions)
    envs.close()


def train(width, num_updates, num_threads):
    """What a worker of `threads` does."""
    import torch

    torch.set_num_threads(num_threads)
    torch.manual_seed(0)
    network = torch_network(width, width, width)
    optimizer = torch.optim.Adam(network.parameters())
    for x, y in batches(num_updates, width):
        loss = (network(torch.from_numpy(x)) - torch.from_numpy(y)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def threads(length, size, is_fixed):
    width, num_cores = round(size), len(os.sched_getaffinity(0))
    # How long an update takes, in milliseconds: it varies from run to run as the threads meet.
    num_updates = round(1000 * length / (0.8 + 3 / (1 + (12 / width) ** 4)))
    arguments = width, num_updates, 1 if is_fixed else max(2, num_cores)
    context = get_context("spawn")
    workers = [context.Process(target=train, args=arguments) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def acting(length, size, is_fixed):
    import torch

    torch.set_num_threads(1)
    policy = torch_network(8, 64, 64, 4)

    @torch.no_grad()
    def choose(obs):
        logits = policy(torch.from_numpy(obs))
        return torch.distributions.Categorical(logits=logits).sample().numpy()

    # The rest is not environments' time: of dear ones, stepping one by one would be another cause.
    learner, step_ms = Learner(256), 0.02
    num_steps = round(1000 * length / (1.4 + size))
    num_updates = np.diff(np.arange(num_steps + 1) * size // 1)
    if is_fixed:
        envs = make_envs(False, 8, compute, step_ms)
        obs, _ = envs.reset()
        for num in num_updates:
            obs, *_ = envs.step(choose(obs))
            for _ in range(int(num)):
                learner.update()
        return
    envs = [make_env(compute, step_ms) for _ in range(8)]
    seen = [env.reset()[0] for env in envs]
    for num in num_updates:
        for i, env in enumerate(envs):
            seen[i], *_ = env.step(choose(seen[i]))
        for _ in range(int(num)):
            learner.update()


def start(length, size, is_fixed):
    """A bandit in plain Python; no function of it takes half of the time."""
    if not is_fixed:
        for library in ("torch", "torch._dynamo", "gymnasium", "matplotlib.pyplot"):
            importlib.import_module(library)
    rng = random.Random(0)
    means, values = [rng.gauss(0.0, 1.0) for _ in range(10)], [0.0] * 10

    def choose():
        return rng.randrange(10) if rng.random() < 0.1 else values.index(max(values))

    def pull(arm):
        return rng.gauss(means[arm], 1.0)

    def learn(arm, reward):
        values[arm] += 0.1 * (reward - values[arm])

    for _ in range(round(1_000_000 * size)):
        arm = choose()
        learn(arm, pull(arm))


def decay(length, size, is_fixed):
    env, learner, rewards, mean, count = make_env(compute, 0.4), Learner(256), [], 0.0, 0
    env.reset()
    # n steps take own n + grown n² / 2 milliseconds.
    own, grown = 1.4, size * 6e-6
    num_steps = round((np.sqrt(own**2 + 2 * grown * 1000 * max(length, 12)) - own) / grown)
    for i in range(num_steps):
        _, reward, *_ = env.step(i % 4)
        learner.update()
        new = [reward] * round(size)
        if is_fixed:
            count += len(new)
            mean += (sum(new) - len(new) * mean) / count
        else:
            rewards += new
            mean = sum(rewards) / len(rewards)
    return mean


# Of `pegged`: milliseconds of learning from a fragment, and its steps.
LEARN_MS, STEPS = 20, 20


def collect(env, weights, seed):
    """A fragment of observations and rewards, by a linear policy."""
    rng, seen, rewards = np.random.default_rng(seed), [], []
    obs, _ = env.reset()
    for _ in range(STEPS):
        seen.append(obs)
        obs, reward, *_ = env.step(int((obs @ weights + rng.gumbel(size=4)).argmax()))
        rewards.append(reward)
    return np.array(seen), np.array(rewards)


def collect_ahead(pipe, ms):
    """A process: a fragment for each set of weights that it is sent."""
    env, seed = make_env(compute, ms), 0
    while (weights := pipe.recv()) is not None:
        pipe.send(collect(env, weights, seed))
        seed += 1


def pegged(length, size, is_fixed):
    step_ms = size * LEARN_MS / STEPS
    context = get_context("fork")
    pipe, other = context.Pipe()
    worker = context.Process(target=collect_ahead, args=(other, step_ms))
    if is_fixed:
        worker.start()  # before torch is there: it needs none
    import torch

    torch.set_num_threads(1)
    network = torch_network(8, 256, 256, 4)
    optimizer = torch.optim.Adam(network.parameters())
    env, weights = make_env(compute, step_ms), np.zeros((8, 4))

    def learn(obs, rewards):
        # Large batches: reaching the arithmetic is not to be another cause.
        x = torch.from_numpy(obs.repeat(60, axis=0))
        y = torch.from_numpy(rewards.astype(np.float32).repeat(60))
        for _ in range(2):
            loss = (network(x)[:, 0] - y).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    num_fragments = round(1000 * length / (LEARN_MS * (1 + size)))
    if not is_fixed:
        for i in range(num_fragments):
            learn(*collect(env, weights, i))
        return
    pipe.send(weights)
    for i in range(num_fragments):
        fragment = pipe.recv()
        pipe.send(weights if i + 1 < num_fragments else None)
        learn(*fragment)
    worker.join()


def discounted_returns(rewards, gamma=0.99):
    """Of an episode, a list."""
    total, returns = 0.0, []
    for reward in reversed(rewards):
        total = reward + gamma * total
        returns.append(total)
    return returns[::-1]


def discounted_returns_at_once(rewards, gamma=0.99):
    """Of episodes, the rows of an array."""
    discounts = gamma ** np.arange(rewards.shape[1])
    return (rewards * discounts)[:, ::-1].cumsum(1)[:, ::-1] / discounts


def function(length, size, is_fixed):
    num_episodes, learner, total = round(size), Learner(256), 0.0
    episodes = np.random.default_rng(0).normal(size=(num_episodes, 200))
    as_lists = episodes.tolist()
    for _ in range(round(1000 * length / (1 + 0.012 * num_episodes))):
        if is_fixed:
            first = discounted_returns_at_once(episodes)[:, 0]
        else:
            first = [discounted_returns(rewards)[0] for rewards in as_lists]
        total += sum(first) / num_episodes
        learner.update()
    print(f"returns {total:.6g}")


def launch(length, size, is_fixed):
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    width, loss = round(size), np.float32(0)
    # The fixed program imports torch, too: that is not what it is slow for.
    network = torch_network(width, width, width)
    num_updates = round(1000 * length / (0.4 + 1.5e-5 * width**2))
    if is_fixed:
        params = torch.nn.utils.parameters_to_vector(network.parameters()).detach().numpy()
        ours = Network(params, width)
        for x, y in batches(num_updates, width):
            loss = ours.update(x, y)
    else:
        optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
        for x, y in batches(num_updates, width):
            loss = torch.nn.functional.mse_loss(network(torch.from_numpy(x)), torch.from_numpy(y))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(f"loss {loss.item():.6f}")


# With a size at which each is there.
CAUSES = {
    environment: 8.0,
    transfer: 0.005,
    threads: 256.0,
    acting: 0.01,
    start: 1.0,
    decay: 200.0,
    pegged: 1.0,
    function: 500.0,
    launch: 8.0,
}


def main():
    causes = {cause.__name__: cause for cause in CAUSES}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cause", choices=causes)
    parser.add_argument("--length", type=float, default=10.0, help="seconds, roughly, when slow")
    parser.add_argument("--size", type=float, help="of the cause, see above")
    parser.add_argument("--fixed", action="store_true", help="do as much without the cause")
    options = parser.parse_args()
    cause = causes[options.cause]
    size = CAUSES[cause] if options.size is None else options.size
    began = time.perf_counter()
    cause(options.length, size, options.fixed)
    print(f"{options.cause}: {time.perf_counter() - began:.2f} s")


if __name__ == "__main__":
    main()
