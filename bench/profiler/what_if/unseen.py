"""Programs that were set aside while the experiment was developed."""

from __future__ import annotations

import asyncio
import json
import multiprocessing

import numpy as np

from bench.profiler.what_if.scaled import Program, compute, factors, pause, run
from hotloop.timing import span


class Agent:
    def __init__(self):
        self.weights = np.random.default_rng(0).standard_normal((96, 96))

    def act(self, obs):
        for _ in range(round(20 * factors.get("Agent.act", 1.0))):
            obs = np.tanh(self.weights @ obs)
        return int(obs.argmax())


class Environment:
    def __init__(self):
        self.obs = np.ones(96)

    def step(self, action):
        self.obs[action] += compute("Environment.step", 6_000) % 2
        return self.obs


def agent(passes):
    agent, environment = Agent(), Environment()
    obs = environment.obs
    for _ in passes:
        obs = environment.step(agent.act(obs))


def spans(passes):
    for number in passes:
        with span("rollout"):
            compute("rollout", 18_000)
        if number % 2:
            with span("update"):
                compute("update", 30_000)


def simulate():
    pause("simulate", 0.006)
    return 1


def simulations(results):
    while True:
        results.put(simulate())


def train():
    pause("train", 0.002)


def processes(passes):
    context = multiprocessing.get_context("fork")
    results = context.Queue(4)
    context.Process(target=simulations, args=(results,), daemon=True).start()
    for _ in passes:
        results.get()
        train()


async def request():
    await asyncio.sleep(0.004 * factors.get("request", 1.0))


def decode():
    return compute("decode", 40_000)


def coroutines(passes):
    async def loop():
        for _ in passes:
            await request()
            decode()

    asyncio.run(loop())


def encode(rows):
    return [json.dumps(rows) for _ in range(round(10 * factors.get("encode", 1.0)))]


def walk(depth: int) -> int:
    return 1 if depth == 0 else walk(depth - 1) + walk(depth - 1)


def count():
    return sum(walk(8) for _ in range(round(20 * factors.get("count", 1.0))))


def recursion(passes):
    rows = [{"number": i, "text": "x" * 20} for i in range(40)]
    for _ in passes:
        encode(rows)
        count()


PROGRAMS = {
    "agent and environment": Program(agent, ("Agent.act", "Environment.step")),
    "spans": Program(spans, ("rollout", "update")),
    "processes": Program(processes, ("simulate", "train"), is_serial=False),
    "coroutines": Program(coroutines, ("request", "decode")),
    "recursion": Program(recursion, ("encode", "count")),
}

if __name__ == "__main__":
    run(PROGRAMS)
