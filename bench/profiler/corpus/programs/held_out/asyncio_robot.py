# type: ignore
"""A robot arm whose nodes exchange messages on topics, on one event loop and a simulated clock."""

import argparse
import asyncio
import math
import time
from collections import defaultdict

import numpy as np

#: length --ticks 500000
#: imports

#: globals


class Bus:
    """Topics and their subscribers. A message is delivered before the next tick."""

    def __init__(self):
        self.subscribers = defaultdict(list)

    def subscribe(self, topic, callback):
        self.subscribers[topic].append(callback)

    async def publish(self, topic, message):
        for callback in self.subscribers[topic]:
            await callback(message)


class Arm:
    """Two joints that swing to a target."""

    def __init__(self, bus, rng):
        self.bus, self.rng = bus, rng
        self.command = (0.0, 0.0)
        bus.subscribe("command", self.on_command)
        self.reset()

    def reset(self):
        self.angles, self.speeds, self.t = [0.0, 0.0], [0.0, 0.0], 0
        self.target = self.rng.uniform(-1, 1, 2).tolist()

    async def on_command(self, message):
        self.command = message

    async def tick(self):
        for _ in range(8):
            for joint, torque in enumerate(self.command):
                self.speeds[joint] = 0.97 * self.speeds[joint] + 0.02 * torque
                self.angles[joint] += 0.02 * self.speeds[joint]
        first, both = self.angles[0], self.angles[0] + self.angles[1]
        hand = (math.sin(first) + math.sin(both), math.cos(first) + math.cos(both) - 1.0)
        distance = math.dist(hand, self.target)
        self.t += 1
        end = self.t == 150
        state = np.array([*self.angles, *self.speeds, *self.target, *hand])
        #: env obs=state reward=-distance count=self.t
        await self.bus.publish("state", (state, -distance, end))
        if end:
            self.reset()


class Controller:
    """A linear policy that learns from episodes with antithetic noise."""

    def __init__(self, bus, rng):
        self.bus, self.rng = bus, rng
        self.weights, self.noise = np.zeros((2, 8)), None
        self.total, self.returns, self.pair, self.t = 0.0, [], [], 0
        bus.subscribe("state", self.on_state)
        self.begin()

    def begin(self):
        self.noise = self.rng.normal(0, 0.1, (2, 8)) if not self.pair else -self.noise
        self.total = 0.0

    async def on_state(self, message):
        state, reward, end = message
        self.total += reward
        self.t += 1
        #: step obs=state reward=reward count=self.t
        await self.bus.publish("command", tuple(np.tanh((self.weights + self.noise) @ state) * 2))
        if end:
            await self.bus.publish("episode", self.total)
            self.pair.append(self.total)
            if len(self.pair) == 2:
                self.weights += 0.02 * (self.pair[0] - self.pair[1]) * -self.noise
                self.pair = []
                #: update count=len(self.returns) reward=self.total steady=yes
            self.returns.append(self.total)
            #: episode count=len(self.returns) reward=self.total steady=yes
            self.begin()


class Recorder:
    def __init__(self, bus):
        self.best = -math.inf
        bus.subscribe("episode", self.on_episode)

    async def on_episode(self, total):
        self.best = max(self.best, total)


async def run(ticks):
    bus, rng = Bus(), np.random.default_rng(0)
    arm, controller, recorder = Arm(bus, rng), Controller(bus, rng), Recorder(bus)
    #: setup
    start = time.perf_counter()
    for tick in range(ticks):
        await arm.tick()
        if tick % 100 == 0:
            await asyncio.sleep(0)
    print(f"best {recorder.best:.1f}, last {np.mean(controller.returns[-20:]):.1f}")
    print(f"loop {time.perf_counter() - start:.3f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--ticks", type=int, default=500000)
    asyncio.run(run(parser.parse_args().ticks))
