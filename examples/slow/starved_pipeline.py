"""Actors, a batcher and a learner as processes, which all wait for the batcher.

    hotloop profile examples/slow/starved_pipeline.py
    hotloop profile examples/slow/starved_pipeline.py --healthy

The batcher normalizes observations number by number. Its input queue is full, so the actors wait.
Its output queue is empty, so the learner waits. A profile of a single process only shows that it
waits for others. The healthy twin normalizes arrays, and the simulators then limit the speed.
"""

from __future__ import annotations

import argparse
import os
import time
from multiprocessing import get_context

# A second thread of the learner would spin between small products, on a core that others need.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

STEPS = 256


def actor(seed, options, fragments):
    """Step a simulator. A sleep stands for this external program."""
    rng = np.random.default_rng(seed)
    obs = rng.normal(5.0, 2.0, (STEPS, options.obs))
    for _ in range(options.fragments // options.actors):
        time.sleep(options.simulate_ms / 1e3)
        fragments.put((obs, rng.normal(size=STEPS)))


def normalize_numbers(obs):
    return np.array([[min(max((float(x) - 5.0) / 2.0, -10.0), 10.0) for x in row] for row in obs])


def normalize_arrays(obs):
    return ((obs - 5.0) / 2.0).clip(-10.0, 10.0)


def batcher(options, fragments, batches):
    normalize = normalize_arrays if options.healthy else normalize_numbers
    for _ in range(options.fragments // options.actors * options.actors):
        obs, reward = fragments.get()
        batches.put((normalize(obs), reward))


def learner(options, batches):
    rng = np.random.default_rng(0)
    hidden, out = 0.1 * rng.normal(size=(options.obs, 32)), rng.normal(size=32)
    for _ in range(options.fragments // options.actors * options.actors):
        obs, reward = batches.get()
        features = np.tanh(obs @ hidden)
        out -= 1e-4 * features.T @ (features @ out - reward)


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--healthy", action="store_true", help="normalize arrays")
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--fragments", type=int, default=1000)
    parser.add_argument("--simulate-ms", type=float, default=6.0, help="time per fragment")
    parser.add_argument("--obs", type=int, default=128, help="size of an observation")
    options = parser.parse_args()
    context = get_context("fork")
    fragments, batches = context.Queue(4), context.Queue(4)
    processes = [
        context.Process(target=actor, args=(seed, options, fragments))
        for seed in range(options.actors)
    ]
    processes.append(context.Process(target=batcher, args=(options, fragments, batches)))
    start_s = time.perf_counter()
    for process in processes:
        process.start()
    learner(options, batches)
    for process in processes:
        process.join()
    seconds = time.perf_counter() - start_s
    print(f"{options.fragments} fragments: {seconds:.2f} s, {options.fragments / seconds:,.0f}/s")


if __name__ == "__main__":
    main()
