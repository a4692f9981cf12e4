"""Measuring contenders in turn, each in a process of its own that is filled once.

A worker (`python -m bench.replay.workers KIND WAY SIZE SCALE`) sets up, then answers each line that
comes in with the figures of one round.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any, NamedTuple

from bench.measuring import Missing, imported, repeated, spread
from bench.replay.contenders import BATCH, Steps, Weights, fields
from bench.replay.post import PROCEDURES
from bench.replay.ways import WAYS, Hotloop

MILLION = 1_000_000


class Scale(NamedTuple):
    """How much is measured."""

    large: int = MILLION
    sizes: tuple[int, ...] = (10_000, 100_000, MILLION)
    huge: int = 10 * MILLION
    points: int = 20
    seconds: float = 0.5
    """Repeats of one measurement in a round go on for this long."""
    updates: int = 300
    warm_up: int = 30
    starts: int = 3


QUICK = Scale(2_000, (1_000, 2_000), 4_000, 4, 0.02, 10, 2, 1)


# Sittings: what a worker's process holds. `round` is what it is told to do again and again.


class Table:
    """The seed's three tables, and the growth: one procedure, or hotloop's `sample`."""

    def __init__(self, way: str, size: int, scale: Scale) -> None:
        self.scale = scale
        self.hotloop = Hotloop(size, "proportional", "returns") if way == "hotloop" else None
        if self.hotloop is None:
            try:
                self.procedure = PROCEDURES[way][1](Weights("returns").draw(size), 0)
            except ImportError:
                raise Missing("not installed") from None
            self.three()  # compiles, where it is compiled

    def three(self) -> tuple[float, ...]:
        """Probability calculation, sampling, both."""
        clock = time.perf_counter
        began = clock()
        probabilities = self.procedure.probabilities()
        calculated = clock()
        self.procedure.draw(probabilities, BATCH)
        drawn = clock()
        return calculated - began, drawn - calculated, drawn - began

    def sampled(self) -> tuple[float, ...]:
        """A batch, gathered as well."""
        assert self.hotloop is not None
        began = time.perf_counter()
        self.hotloop.sample()
        return (time.perf_counter() - began,)

    def round(self, fill: int = 0) -> dict[str, float]:
        """Measure, at `fill` entries."""
        if self.hotloop is not None:
            if fill:
                self.hotloop.fill(fill)
            self.sampled()
            return repeated(self.sampled, ("total",), self.scale.seconds)
        if fill:
            self.procedure.fill(fill)
        self.three()
        return repeated(self.three, ("probability", "sampling", "total"), self.scale.seconds)


class Alone:
    """A contender by itself: everything that it touches is in the caches."""

    def __init__(self, way: str, size: int, scale: Scale) -> None:
        self.scale = scale
        self.contender = WAYS[way].make(size)
        weights = self.contender.weights or Weights("td")
        self.pool = [weights.draw(BATCH) for _ in range(64)]
        self.steps = Steps()
        self.number = self.contender.next_number
        self.calls = 0
        for _ in range(3):
            self.batch()
            self.added()

    def batch(self) -> tuple[float, ...]:
        """sample, tensors, update, and the first and last of these together."""
        clock, contender = time.perf_counter, self.contender
        self.calls += 1
        weight = self.pool[self.calls % 64]
        began = clock()
        batch = contender.sample()
        sampled = clock()
        contender.tensors(batch)
        converted = clock()
        contender.update(batch, weight)
        updated = clock()
        sample, update = sampled - began, updated - converted
        return sample, converted - sampled, update, sample + update

    def added(self) -> tuple[float, ...]:
        """One more transition."""
        step = self.steps.one(self.number)
        weight = float(self.pool[self.number % 64][self.number % BATCH])
        self.number += 1
        add = self.contender.adding(step, weight)
        with suppress(NotImplementedError):
            began = time.perf_counter()
            add()
            return (time.perf_counter() - began,)
        return (0.0,)

    def round(self) -> dict[str, float]:
        """Measure."""
        seconds = self.scale.seconds
        figures = repeated(self.batch, ("sample", "tensors", "update", "both"), seconds)
        return figures | repeated(self.added, ("add",), seconds / 4)


class InLoop:
    """A contender within the training loop."""

    def __init__(self, way: str, size: int, scale: Scale) -> None:
        from bench.replay.loop import PARTS, Loop

        self.names = (*PARTS, "both", "replay")
        self.loop = Loop(WAYS[way].make(size), threads=2)
        self.scale = scale
        self.once()

    def once(self) -> tuple[float, ...]:
        """One update, with sample + update, and with sample + tensors + update."""
        parts = self.loop.once()
        return (*parts, parts[0] + parts[2], parts[0] + parts[1] + parts[2])

    def round(self) -> dict[str, float]:
        """Measure `updates` updates; the first ones only bring the caches back."""
        for _ in range(self.scale.warm_up):
            self.once()
        return repeated(self.once, self.names, 0.0, self.scale.updates)


class Extending:
    """`extend` of one row from each of 64 environments."""

    def __init__(self, way: str, size: int, scale: Scale) -> None:
        replay = imported("hotloop.replay")
        self.scale = scale
        self.buffer = replay.ReplayBuffer(
            capacity=size,
            fields=fields(),
            sampler=replay.Proportional(replacement=False),
            num_envs=64,
            share_next_obs=way == "shared",
        )
        self.rows = [Steps().rows(start, start + 64) for start in range(0, 6_400, 64)]
        self.weight = Weights("returns").draw(64)
        self.calls = 0
        for _ in range(size // 64 + 2):
            self.once()

    def once(self) -> tuple[float, ...]:
        """One call."""
        self.calls += 1
        rows = self.rows[self.calls % len(self.rows)]
        began = time.perf_counter()
        self.buffer.extend(**rows, weight=self.weight)
        return (time.perf_counter() - began,)

    def round(self) -> dict[str, float]:
        """Measure."""
        return repeated(self.once, ("extend_64",), self.scale.seconds)


class Memory:
    """Bytes of a full buffer; measures no time."""

    def __init__(self, way: str, size: int, scale: Scale) -> None:
        self.size = size
        self.buffer = Hotloop(size, "proportional", "returns", shared=way == "shared").buffer

    def round(self) -> dict[str, float]:
        """By part."""
        return {name: float(count) for name, count in self.buffer.memory().items()}


SITTINGS: dict[str, Callable[[str, int, Scale], Any]] = {
    "table": Table,
    "alone": Alone,
    "loop": InLoop,
    "extend": Extending,
    "memory": Memory,
}
MARK = "@replay "  # before the lines that are answers; libraries print as well


def serve(kind: str, way: str, size: int, scale: Scale) -> int:
    """Be a worker: set up, then measure a round for each line that comes in."""
    try:
        sitting = SITTINGS[kind](way, size, scale)
    except Missing as why:
        print(f"{MARK}{json.dumps({'missing': str(why)})}", flush=True)
        return 0
    print(f"{MARK}{{}}", flush=True)
    for line in sys.stdin:
        print(f"{MARK}{json.dumps(sitting.round(**json.loads(line)))}", flush=True)
    return 0


class Worker:
    """A contender's process."""

    def __init__(self, kind: str, way: str, size: int, scale: Scale) -> None:
        self.errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 (closed at the exit)
        command = [sys.executable, "-m", "bench.replay.workers", kind, way, str(size)]
        self.process = subprocess.Popen(
            [*command, json.dumps(scale._asdict())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
        )
        self.missing: str | None = self._answer().get("missing")

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(MARK):
                return json.loads(line.removeprefix(MARK))
        self.errors.seek(0)
        last = self.errors.read().strip().splitlines()[-1:]
        return {"missing": f"failed: {''.join(last)[:200]}"}

    def round(self, **arguments: Any) -> dict[str, float]:
        """One round's figures; nothing if it has failed."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(arguments) + "\n")
            self.process.stdin.flush()
        figures = self._answer()
        self.missing = figures.pop("missing", self.missing)
        return figures

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(BrokenPipeError):
            self.process.communicate(timeout=60)
        self.errors.close()


def free_bytes() -> float:
    """Memory that is left; endless where the system does not say."""
    with suppress(OSError), open("/proc/meminfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return float(line.split()[1]) * 1024
    return float("inf")


class Entrant(NamedTuple):
    """What takes part in a comparison."""

    way: str
    size: int
    about: str
    bytes_per_entry: int


def entrant(way: str, size: int) -> Entrant:
    """One of `WAYS`."""
    return Entrant(way, size, WAYS[way].about, WAYS[way].bytes_per_entry)


def compare(
    kind: str,
    entrants: Sequence[Entrant],
    rounds: int,
    scale: Scale,
    each_round: Sequence[dict[str, Any]] = ({},),
) -> list[dict[str, Any]]:
    """Alternate the entrants' rounds.

    Args:
        each_round: the arguments of the measurements that make up a round.
    Returns:
        For each entrant and each of `each_round`, in this order, the spread of its figures over
        the rounds, or `missing`.
    """
    results: list[dict[str, Any]] = []
    with ExitStack() as stack:
        workers: list[Worker | None] = []
        for one in entrants:
            # Half a gigabyte for the interpreter with torch and the working arrays.
            if free_bytes() < 1.2 * one.size * one.bytes_per_entry + 5e8:
                workers.append(None)
            else:
                workers.append(stack.enter_context(Worker(kind, one.way, one.size, scale)))
            print(".", end="", flush=True)
        measured: list[list[dict[str, list[float]]]] = [[{} for _ in each_round] for _ in entrants]
        for number in range(rounds):
            for place, arguments in enumerate(each_round):
                order = list(enumerate(workers))[:: 1 if (number + place) % 2 else -1]
                for which, worker in order:
                    if worker is not None and worker.missing is None:
                        for name, value in worker.round(**arguments).items():
                            measured[which][place].setdefault(name, []).append(value)
            print(".", end="", flush=True)
        print()
        for one, worker, places in zip(entrants, workers, measured, strict=True):
            why = "too little memory" if worker is None else worker.missing
            if why is not None:
                print(f"  {one.about}, {one.size:,} entries: {why}")
            for figures in places:
                results.append(
                    {"missing": why}
                    if why is not None
                    else {name: spread(values) for name, values in figures.items()}
                )
    return results


if __name__ == "__main__":
    kind, way, size, scale = sys.argv[1:]
    sys.exit(serve(kind, way, int(size), Scale(**json.loads(scale))))
