# type: ignore
"""A simulator process behind a socket, whose next step is under way while the agent learns."""

import argparse
import multiprocessing
import socket
import struct
import time

import numpy as np
import torch
from torch import nn

#: length --steps 11000
#: imports

torch.set_num_threads(1)
MESSAGE = struct.Struct("<5d?")

#: globals


class Tank:
    """Water in three tanks; the agent opens a valve. Many small steps of physics for each action."""

    def __init__(self):
        self.rng = np.random.default_rng(4)
        self.reset()

    def reset(self):
        self.levels, self.t = self.rng.uniform(0.2, 0.8, 3).tolist(), 0

    def step(self, valve):
        a, b, c = self.levels
        for _ in range(600):
            flow, onward, out = 0.01 * (a - b), 0.01 * (b - c), 0.004 * c
            a += 0.02 * (0.004 * valve - flow)
            b += 0.02 * (flow - onward)
            c += 0.02 * (onward - out)
        self.levels, self.t = [a, b, c], self.t + 1
        reward = -abs(c - 0.5)
        #: worker reward=reward count=self.t parallel=1
        return reward, self.t == 150


def simulate(listener):
    link, _ = listener.accept()
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    tank = Tank()
    reward, end = 0.0, False
    while True:
        if end:
            tank.reset()
        link.sendall(MESSAGE.pack(*tank.levels, reward, float(tank.t), end))
        received = link.recv(8)
        if len(received) < 8:
            return
        reward, end = tank.step(struct.unpack("<d", received)[0])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=11000)
    args = parser.parse_args()
    torch.manual_seed(0)
    listener = socket.create_server(("127.0.0.1", 0))
    process = multiprocessing.Process(target=simulate, args=(listener,), daemon=True)
    process.start()
    link = socket.create_connection(listener.getsockname())
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    q = nn.Sequential(
        nn.Linear(3, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 3)
    )
    optimizer = torch.optim.Adam(q.parameters(), 5e-4, fused=True)
    rng = np.random.default_rng(0)
    memory, filled = np.zeros((20_000, 9), np.float32), 0
    *state, reward, _, end = MESSAGE.unpack(link.recv(MESSAGE.size, socket.MSG_WAITALL))
    #: setup net=q
    start = time.perf_counter()
    for step in range(args.steps):
        with torch.no_grad():
            action = int(q(torch.tensor(state)).argmax())
        if rng.random() < 0.1:
            action = int(rng.integers(3))
        link.sendall(struct.pack("<d", float(action)))
        # The simulator works on this action during the update.
        if filled > 64:
            rows = torch.from_numpy(memory[rng.integers(0, min(filled, len(memory)), 64)])
            before, chosen, gained, after, last = rows.split([3, 1, 1, 3, 1], 1)
            with torch.no_grad():
                goal = gained + 0.98 * (1 - last) * q(after).amax(1, keepdim=True)
            loss = nn.functional.smooth_l1_loss(q(before).gather(1, chosen.long()), goal)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            #: update count=step net=q steady=yes
        *after, reward, _, end = MESSAGE.unpack(link.recv(MESSAGE.size, socket.MSG_WAITALL))
        memory[filled % len(memory)] = [*state, action, reward, *after, end]
        filled, state = filled + 1, after
        #: step obs=np.array(state) reward=reward count=step net=q
    took = time.perf_counter() - start
    link.close()
    process.join()
    print(f"last level {state[2]:.3f}")
    print(f"loop {took:.3f} s")


if __name__ == "__main__":
    main()
