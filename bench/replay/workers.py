"""Measurement of contenders in turn, each in its own process with a buffer that is filled once.

A worker (`python -m bench.replay.workers KIND WAY SIZE SCALE`) fills its buffer. For each line of
input it then prints the figures of one round.
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

from bench.measuring import Missing, import_library, repeat_medians, spread
from bench.replay.contenders import BATCH, Steps, Weights, fields
from bench.replay.post import PROCEDURES
from bench.replay.registry import WAYS, HotloopContender

MILLION = 1_000_000


class ReplayScale(NamedTuple):
    """Sizes of the measurements."""

    large: int = MILLION
    sizes: tuple[int, ...] = (10_000, 100_000, MILLION)
    huge: int = 10 * MILLION
    points: int = 20
    seconds: float = 0.5
    """Duration of one measurement's repeats in a round."""
    updates: int = 300
    warm_up: int = 30
    starts: int = 3


QUICK = ReplayScale(2_000, (1_000, 2_000), 4_000, 4, 0.02, 10, 2, 1)


# Measurements of a worker's process. Each has a method `round` for one round.


class PostTables:
    """The post's three tables and the growth, for one procedure or hotloop's `sample`."""

    def __init__(self, way: str, size: int, scale: ReplayScale) -> None:
        self.scale = scale
        self.hotloop = (
            HotloopContender(size, "proportional", "returns") if way == "hotloop" else None
        )
        if self.hotloop is None:
            try:
                self.procedure = PROCEDURES[way][1](Weights("returns").draw(size), 0)
            except ImportError:
                raise Missing("not installed") from None
            self.time_procedure()  # triggers compilation

    def time_procedure(self) -> tuple[float, ...]:
        """Return the seconds of the probabilities, of sampling, and of both."""
        clock = time.perf_counter
        start_s = clock()
        probabilities = self.procedure.probabilities()
        calculated = clock()
        self.procedure.draw(probabilities, BATCH)
        drawn_s = clock()
        return calculated - start_s, drawn_s - calculated, drawn_s - start_s

    def time_sample(self) -> tuple[float, ...]:
        """Return the seconds to sample and gather a batch."""
        assert self.hotloop is not None
        start_s = time.perf_counter()
        self.hotloop.sample()
        return (time.perf_counter() - start_s,)

    def round(self, fill: int = 0) -> dict[str, float]:
        """Measure one round at `fill` entries."""
        if self.hotloop is not None:
            if fill:
                self.hotloop.fill(fill)
            self.time_sample()
            return repeat_medians(self.time_sample, ("total",), self.scale.seconds)
        if fill:
            self.procedure.fill(fill)
        self.time_procedure()
        return repeat_medians(
            self.time_procedure, ("probability", "sampling", "total"), self.scale.seconds
        )


class Alone:
    """A contender alone, with warm CPU caches."""

    def __init__(self, way: str, size: int, scale: ReplayScale) -> None:
        self.scale = scale
        self.contender = WAYS[way].make(size)
        weights = self.contender.weights or Weights("td")
        self.pool = [weights.draw(BATCH) for _ in range(64)]
        self.steps = Steps()
        self.number = self.contender.next_number
        self.calls = 0
        for _ in range(3):
            self.time_batch()
            self.time_add()

    def time_batch(self) -> tuple[float, ...]:
        """Return the seconds of sample, tensors, update, and of sample and update together."""
        clock, contender = time.perf_counter, self.contender
        self.calls += 1
        weight = self.pool[self.calls % 64]
        start_s = clock()
        batch = contender.sample()
        sampled = clock()
        contender.tensors(batch)
        converted = clock()
        contender.update(batch, weight)
        updated = clock()
        sample, update = sampled - start_s, updated - converted
        return sample, converted - sampled, update, sample + update

    def time_add(self) -> tuple[float, ...]:
        """Return the seconds to add a transition."""
        step = self.steps.transition(self.number)
        weight = float(self.pool[self.number % 64][self.number % BATCH])
        self.number += 1
        add = self.contender.prepare_add(step, weight)
        with suppress(NotImplementedError):
            start_s = time.perf_counter()
            add()
            return (time.perf_counter() - start_s,)
        return (0.0,)

    def round(self) -> dict[str, float]:
        """Measure one round."""
        seconds = self.scale.seconds
        figures = repeat_medians(self.time_batch, ("sample", "tensors", "update", "both"), seconds)
        return figures | repeat_medians(self.time_add, ("add",), seconds / 4)


class InLoop:
    """A contender in the training loop."""

    def __init__(self, way: str, size: int, scale: ReplayScale) -> None:
        from bench.replay.loop import PARTS, Loop

        self.names = (*PARTS, "both", "replay")
        self.loop = Loop(WAYS[way].make(size), threads=2)
        self.scale = scale
        self.time_update()

    def time_update(self) -> tuple[float, ...]:
        """Return an update's seconds, with sample + update and sample + tensors + update."""
        parts = self.loop.time_update()
        return (*parts, parts[0] + parts[2], parts[0] + parts[1] + parts[2])

    def round(self) -> dict[str, float]:
        """Measure `updates` updates after some that warm up the caches."""
        for _ in range(self.scale.warm_up):
            self.time_update()
        return repeat_medians(self.time_update, self.names, 0.0, self.scale.updates)


class Extending:
    """`extend` with one row from each of 64 environments."""

    def __init__(self, way: str, size: int, scale: ReplayScale) -> None:
        replay = import_library("hotloop.replay")
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
            self.time_extend()

    def time_extend(self) -> tuple[float, ...]:
        """Return the seconds of one call."""
        self.calls += 1
        rows = self.rows[self.calls % len(self.rows)]
        start_s = time.perf_counter()
        self.buffer.extend(**rows, weight=self.weight)
        return (time.perf_counter() - start_s,)

    def round(self) -> dict[str, float]:
        """Measure one round."""
        return repeat_medians(self.time_extend, ("extend_64",), self.scale.seconds)


class Memory:
    """Memory of a full buffer."""

    def __init__(self, way: str, size: int, scale: ReplayScale) -> None:
        self.size = size
        self.buffer = HotloopContender(
            size, "proportional", "returns", shared=way == "shared"
        ).buffer

    def round(self) -> dict[str, float]:
        """Return the bytes by part."""
        return {name: float(count) for name, count in self.buffer.memory().items()}


MEASUREMENTS: dict[str, Callable[[str, int, ReplayScale], Any]] = {
    "table": PostTables,
    "alone": Alone,
    "loop": InLoop,
    "extend": Extending,
    "memory": Memory,
}
MARK = "@replay "  # prefix of results, since libraries also print


def serve(kind: str, way: str, size: int, scale: ReplayScale) -> int:
    """Run a worker: set up, then measure a round for each line of input."""
    try:
        sitting = MEASUREMENTS[kind](way, size, scale)
    except Missing as error:
        print(f"{MARK}{json.dumps({'missing': str(error)})}", flush=True)
        return 0
    print(f"{MARK}{{}}", flush=True)
    for line in sys.stdin:
        print(f"{MARK}{json.dumps(sitting.round(**json.loads(line)))}", flush=True)
    return 0


class Worker:
    """The process of a contender."""

    def __init__(self, kind: str, way: str, size: int, scale: ReplayScale) -> None:
        self.errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 (closed at exit)
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
        """Return the figures of one round, empty if it failed."""
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
    """Return the available memory, or infinity if the system does not report it."""
    with suppress(OSError), open("/proc/meminfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return float(line.split()[1]) * 1024
    return float("inf")


class Entrant(NamedTuple):
    """A contender in a comparison, with a size."""

    way: str
    size: int
    label: str
    bytes_per_entry: int


def make_entrant(way: str, size: int) -> Entrant:
    """Return a contender of `WAYS` with a size."""
    return Entrant(way, size, WAYS[way].label, WAYS[way].bytes_per_entry)


def compare(
    kind: str,
    entrants: Sequence[Entrant],
    rounds: int,
    scale: ReplayScale,
    each_round: Sequence[dict[str, Any]] = ({},),
) -> list[dict[str, Any]]:
    """Measure the entrants' rounds in turn.

    Args:
        each_round: arguments of the measurements in a round.

    Returns:
        For each entrant and each of `each_round`, in this order, the spread of its figures over
        the rounds, or `missing`.
    """
    results: list[dict[str, Any]] = []
    with ExitStack() as stack:
        workers: list[Worker | None] = []
        for entrant in entrants:
            # Half a gigabyte for the interpreter with torch and working arrays.
            if free_bytes() < 1.2 * entrant.size * entrant.bytes_per_entry + 5e8:
                workers.append(None)
            else:
                workers.append(stack.enter_context(Worker(kind, entrant.way, entrant.size, scale)))
            print(".", end="", flush=True)
        measured: list[list[dict[str, list[float]]]] = [[{} for _ in each_round] for _ in entrants]
        for number in range(rounds):
            for place, arguments in enumerate(each_round):
                order = list(enumerate(workers))[:: 1 if (number + place) % 2 else -1]
                for index, worker in order:
                    if worker is not None and worker.missing is None:
                        for name, value in worker.round(**arguments).items():
                            measured[index][place].setdefault(name, []).append(value)
            print(".", end="", flush=True)
        print()
        for entrant, worker, places in zip(entrants, workers, measured, strict=True):
            reason = "too little memory" if worker is None else worker.missing
            if reason is not None:
                print(f"  {entrant.label}, {entrant.size:,} entries: {reason}")
            for figures in places:
                results.append(
                    {"missing": reason}
                    if reason is not None
                    else {name: spread(values) for name, values in figures.items()}
                )
    return results


if __name__ == "__main__":
    kind, way, size, scale = sys.argv[1:]
    sys.exit(serve(kind, way, int(size), ReplayScale(**json.loads(scale))))
