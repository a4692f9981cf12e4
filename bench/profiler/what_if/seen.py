"""Programs with which the experiment was developed."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

from bench.profiler.what_if.scaled import Program, compute, pause, run


def parse():
    return compute("parse", 10_000)


def solve():
    return compute("solve", 30_000)


def save():
    return compute("save", 12_000)


def functions(passes):
    for _ in passes:
        parse()
        solve()
        save()


def fetch():
    pause("fetch", 0.003)


def digest():
    return compute("digest", 40_000)


def computing_and_sleeping(passes):
    for _ in passes:
        fetch()
        digest()


def touch(i):
    return compute("touch", 300) + i


def short_calls(passes):
    for _ in passes:
        for i in range(60):
            touch(i)
        save()


def produce(i):
    return compute("produce", 15_000) + i


def rows(passes) -> Iterator[int]:
    for i in passes:
        yield produce(i)


def consume(row):
    return compute("consume", 25_000) + row


def generator(passes):
    for row in rows(passes):
        consume(row)


def collect():
    pause("collect", 0.008)
    return 1


def infer(item):
    pause("infer", 0.004)
    return item


def learn(item):
    pause("learn", 0.002)


def threads(passes):
    collected, inferred = queue.Queue(4), queue.Queue(4)

    def collecting():
        while True:
            collected.put(collect())

    def inferring():
        while True:
            inferred.put(infer(collected.get()))

    for target in (collecting, collecting, collecting, inferring):
        threading.Thread(target=target, daemon=True).start()
    for _ in passes:
        learn(inferred.get())


PROGRAMS = {
    "functions": Program(functions, ("solve", "parse")),
    "computing and sleeping": Program(computing_and_sleeping, ("fetch", "digest")),
    "short calls": Program(short_calls, ("touch", "save")),
    "generator": Program(generator, ("produce", "consume")),
    "threads": Program(threads, ("infer", "collect"), is_serial=False),
}

if __name__ == "__main__":
    run(PROGRAMS)
