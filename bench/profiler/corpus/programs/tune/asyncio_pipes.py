# type: ignore
"""Grid worlds behind local streams, as a game server would be; Q-learning on what they send."""

import argparse
import asyncio
import struct
import time

import numpy as np

#: length --steps 68000
#: imports

SIDE = 12
REQUEST, REPLY = struct.Struct("<b"), struct.Struct("<hfb")

#: globals


class Grid:
    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.reset()

    def reset(self):
        self.x, self.y = self.rng.integers(0, SIDE, 2).tolist()
        self.left = 80

    def step(self, action):
        dx, dy = ((1, 0), (0, 1), (-1, 0), (0, -1))[action]
        self.x = min(max(self.x + dx, 0), SIDE - 1)
        self.y = min(max(self.y + dy, 0), SIDE - 1)
        self.left -= 1
        arrived = self.x == self.y == SIDE - 1
        done = arrived or self.left == 0
        #: env count=self.left reward=float(arrived)
        if done:
            self.reset()
        return self.x * SIDE + self.y, 1.0 if arrived else -0.01, done


async def serve(reader, writer):
    grid = Grid(seed=1)
    try:
        while True:
            (action,) = REQUEST.unpack(await reader.readexactly(REQUEST.size))
            state, reward, done = grid.step(action)
            writer.write(REPLY.pack(state, reward, done))
    except asyncio.IncompleteReadError:
        writer.close()


async def play(number, port, q, steps, totals):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    rng = np.random.default_rng(number)
    explore = rng.random(steps) < 0.15
    random_actions = rng.integers(0, 4, steps).tolist()
    state, total = 0, 0.0
    for step in range(steps):
        action = random_actions[step] if explore[step] else int(q[state].argmax())
        writer.write(REQUEST.pack(action))
        following, reward, done = REPLY.unpack(await reader.readexactly(REPLY.size))
        goal = reward + 0.97 * q[following].max() * (not done)
        q[state, action] += 0.3 * (goal - q[state, action])
        state, total = following, total + reward
        #: step reward=reward count=step
        if done:
            totals.append(total)
            #: episode reward=total count=len(totals) steady=yes
            total = 0.0
    writer.close()


async def main(steps, clients=4):
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    q, totals = np.zeros((SIDE * SIDE, 4)), []
    #: setup
    #: asetup
    began = time.perf_counter()
    await asyncio.gather(
        *(play(number, port, q, steps // clients, totals) for number in range(clients))
    )
    took = time.perf_counter() - began
    server.close()
    print(f"{len(totals)} episodes, the last {np.mean(totals[-50:]):.2f}")
    print(f"loop {took:.3f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=68000)
    asyncio.run(main(parser.parse_args().steps))
