"""Actors, a batcher and a learner, each a process, of which one keeps all others waiting.

    hotloop profile examples/slow/starved_pipeline.py
    hotloop profile examples/slow/starved_pipeline.py --healthy

The batcher normalises observations number by number. The queue in front of it is full, so the
actors wait; the one behind it is empty, so the learner does. Each process by itself looks as if it
waited for "the others"; the twin normalises arrays, and then the simulators set the pace.
"""

from __future__ import annotations

import argparse
import os
import time
from multiprocessing import get_context

# A second thread of the learner's would spin between small products, on a core that others need.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

STEPS = 256


def actor(seed, options, fragments):
    """Steps a simulator, which is another program: here, it sleeps."""
    rng = np.random.default_rng(seed)
    obs = rng.normal(5.0, 2.0, (STEPS, options.obs))
    for _ in range(options.fragments // options.actors):
        time.sleep(options.simulate_ms / 1e3)
        fragments.put((obs, rng.normal(size=STEPS)))


def normalise_numbers(obs):
    return np.array([[min(max((float(x) - 5.0) / 2.0, -10.0), 10.0) for x in row] for row in obs])


def normalise_arrays(obs):
    return ((obs - 5.0) / 2.0).clip(-10.0, 10.0)


def batcher(options, fragments, batches):
    normalise = normalise_arrays if options.healthy else normalise_numbers
    for _ in range(options.fragments // options.actors * options.actors):
        obs, reward = fragments.get()
        batches.put((normalise(obs), reward))


def learner(options, batches):
    rng = np.random.default_rng(0)
    hidden, out = 0.1 * rng.normal(size=(options.obs, 32)), rng.normal(size=32)
    for _ in range(options.fragments // options.actors * options.actors):
        obs, reward = batches.get()
        features = np.tanh(obs @ hidden)
        out -= 1e-4 * features.T @ (features @ out - reward)


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--healthy", action="store_true", help="normalise arrays")
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--fragments", type=int, default=1000)
    parser.add_argument("--simulate-ms", type=float, default=6.0, help="of a fragment's steps")
    parser.add_argument("--obs", type=int, default=128, help="numbers in an observation")
    options = parser.parse_args()
    context = get_context("fork")
    fragments, batches = context.Queue(4), context.Queue(4)
    processes = [
        context.Process(target=actor, args=(seed, options, fragments))
        for seed in range(options.actors)
    ]
    processes.append(context.Process(target=batcher, args=(options, fragments, batches)))
    began = time.perf_counter()
    for process in processes:
        process.start()
    learner(options, batches)
    for process in processes:
        process.join()
    seconds = time.perf_counter() - began
    print(f"{options.fragments} fragments: {seconds:.2f} s, {options.fragments / seconds:,.0f}/s")


if __name__ == "__main__":
    main()
