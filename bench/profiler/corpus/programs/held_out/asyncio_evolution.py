# type: ignore
"""Evolution strategies whose members are evaluated by coroutines of one event loop."""

import argparse
import asyncio
import time

import gymnasium as gym
import numpy as np

#: length --generations 160
#: imports

parser = argparse.ArgumentParser()
parser.add_argument("--generations", type=int, default=160)
parser.add_argument("--population", type=int, default=16)
parser.add_argument("--sigma", type=float, default=0.3)
args = parser.parse_args()

#: globals


class Member:
    def __init__(self, number):
        self.env = gym.make("MountainCarContinuous-v0")
        #: wrap env=self.env copies=16
        self.number = number

    async def evaluate(self, weights, steps=200):
        obs, _ = self.env.reset(seed=self.number)
        total = 0.0
        for step in range(steps):
            push = np.tanh(weights[:2] @ obs + weights[2])
            obs, reward, terminated, _, _ = self.env.step(np.array([push], np.float32))
            total += float(reward) + 10.0 * abs(float(obs[1]))
            #: step obs=obs reward=float(reward) count=step
            if step % 25 == 0:
                await asyncio.sleep(0)
            if terminated:
                break
        #: episode reward=total count=self.number obs=obs
        return total


async def main():
    rng = np.random.default_rng(0)
    members = [Member(number) for number in range(args.population)]
    mean, bests = np.zeros(3), []
    #: setup
    #: asetup
    started = time.perf_counter()
    for generation in range(args.generations):
        noise = rng.normal(size=(args.population, 3))
        jobs = [
            member.evaluate(mean + args.sigma * one)
            for member, one in zip(members, noise, strict=True)
        ]
        totals = np.array(await asyncio.gather(*jobs))
        scores = (totals - totals.mean()) / (totals.std() + 1e-8)
        mean = mean + 0.2 * scores @ noise / args.population
        bests.append(float(totals.max()))
        #: update count=generation reward=bests[-1] obs=mean steady=yes
    print(f"best {max(bests):.2f}")
    print(f"loop {time.perf_counter() - started:.3f} s")


asyncio.run(main())
