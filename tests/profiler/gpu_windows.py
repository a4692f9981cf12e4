"""GPU windows of simulated programs: a host launches kernels, and a device executes them.

    machine = Machine()
    while machine.now_us < 250_000:
        machine.launch(3, at="train.py:40", stage="update")
        machine.synchronize(at="train.py:41", stage="update")
    header, events = machine.window()

The result has the content of a profiler's window: a header, and Kineto's events in Chrome's format
on a separate clock. Kernels run in the order of their launches, on one stream.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hotloop.profiler.session import Session
from hotloop.profiler.session.kineto import parse_window
from hotloop.timing.gpu_window import MARKER, SUFFIX, TRACE_SUFFIX
from tests.profiler.sessions import START_NS, period, process, sample, session

WINDOW_NS = START_NS + 3_000_000_000
# The trace uses the wall clock. The reader estimates its offset from the monotonic clock.
KINETO_AHEAD_NS = 1_700_000_000_000_000_000 // 1000
PID, IDENT = 100, 0x7F00_DEAD_BEEF
CALL_US = 5.0
_PERIOD_US = 2000.0
_FRAMES = {
    "env": ("Walker.step", "/lib/python3.12/site-packages/gymnasium/envs/walker.py", 7),
    "update": ("backward", "/lib/python3.12/site-packages/torch/autograd/__init__.py", 90),
}


class Machine:
    """A host and a device, with times in microseconds since the window started."""

    def __init__(self) -> None:
        self.now_us = 0.0
        self.free_us = 0.0
        self.events: list[dict[str, Any]] = []
        self.spans: dict[str, list[float]] = {}
        self._activities: list[tuple[float, str, str]] = []
        self._correlation = 100

    def host(self, us: float, *, at: str, stage: str = "other") -> None:
        """Run the host alone, at a line of `train.py`."""
        self._activities.append((self.now_us, at, stage))
        self.now_us += us

    def launch(
        self,
        kernel_us: float,
        *,
        at: str,
        stage: str = "update",
        name: str = "small",
        us: float = 20,
    ) -> None:
        """Run an operation of `us` on the host, including 5 µs in the call, and then a kernel."""
        self.host(us - CALL_US, at=at, stage=stage)
        number = self._call("cudaLaunchKernel", CALL_US)
        self._work("kernel", f"void at::native::{name}<4>(int)", kernel_us, number)

    def replay(self, kernels_us: list[float], *, at: str) -> None:
        """Launch a graph from the host."""
        self.host(5, at=at, stage="update")
        number = self._call("cudaGraphLaunch", 10)
        for us in kernels_us:
            self._work("kernel", "fused", us, number)

    def synchronize(
        self, *, at: str, stage: str = "update", name: str = "cudaStreamSynchronize"
    ) -> None:
        """Block the host until the device is idle."""
        self._activities.append((self.now_us, at, stage))
        self._call(name, max(CALL_US, self.free_us - self.now_us + 3))

    def copy(
        self,
        name: str,
        size_bytes: int,
        us: float,
        *,
        at: str,
        stage: str = "update",
        host_us: float = CALL_US,
    ) -> None:
        """Request a copy from the host, such as "Memcpy HtoD (Pageable -> Device)"."""
        self._activities.append((self.now_us, at, stage))
        number = self._call("cudaMemcpyAsync", host_us)
        self._work("gpu_memcpy", name, us, number, bytes=size_bytes)

    def span(self, name: str, us: float) -> None:
        """Record a span of the program that has ended."""
        sums = self.spans.setdefault(name, [0, 0.0])
        sums[0] += 1
        sums[1] += us

    def _call(self, name: str, us: float) -> int:
        self._correlation += 1
        # Kineto stores the signed low 32 bits of the POSIX id for threads that did not start it.
        tid = (IDENT & 0xFFFFFFFF) - (1 << 32)
        self._event("cuda_runtime", name, self.now_us, us, PID, tid, cbid=211)
        self.now_us += us
        return self._correlation

    def _work(self, category: str, name: str, us: float, number: int, **args: int) -> None:
        start = max(self.now_us + 2, self.free_us + 1)
        self.free_us = start + us
        self._correlation = number
        self._event(category, name, start, us, 0, 7, device=0, stream=7, **args)

    def _event(
        self, category: str, name: str, start_us: float, us: float, pid: int, tid: int, **args: int
    ) -> None:
        ts = (WINDOW_NS + KINETO_AHEAD_NS) / 1e3 + start_us
        args = {"correlation": self._correlation, "External id": 0, **args}
        self.events.append(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "pid": pid,
                "tid": tid,
                "ts": round(ts, 3),
                "dur": round(us, 3),
                "args": args,
            }
        )

    def window(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Return the header of the trace and the events of the trace."""
        end_ns = WINDOW_NS + round(self.now_us * 1e3)
        markers = [WINDOW_NS - 30_000, WINDOW_NS - 10_000, end_ns + 10_000, end_ns + 30_000]
        events = [{"ph": "M", "name": "process_name", "pid": PID, "args": {"name": "python"}}]
        for at_ns in markers:
            ts = (at_ns + KINETO_AHEAD_NS) / 1e3 + 1
            fields = {"cat": "user_annotation", "name": MARKER, "pid": PID, "tid": 7}
            events.append({"ph": "X", **fields, "ts": ts, "dur": 4.0, "args": {}})
        places, stacks, looks = self._stack_samples()
        header = {
            "version": 1,
            "pid": PID,
            "boot_id": "a-boot",
            "component": "main",
            "began_ns": WINDOW_NS - 900_000_000,
            "start_ns": WINDOW_NS,
            "end_ns": end_ns,
            "stopped_ns": end_ns + 50_000_000,
            "written_ns": end_ns + 100_000_000,
            "torch": "2.13.0",
            "devices": ["a GPU"],
            "marker": MARKER,
            "markers": [[at_ns, at_ns + 6_000] for at_ns in markers],
            "period_ns": 2_000_000,
            "spans": [
                [],
                [
                    [[name], "work", int(n), round(us * 1e3), 0]
                    for name, (n, us) in self.spans.items()
                ],
            ],
            "threads": [[PID, IDENT, "MainThread"], [PID + 1, 12, "other"]],
            "places": places,
            "stacks": stacks,
            "paths": [[]],
            "looks": looks,
        }
        return header, events + self.events

    def _stack_samples(self) -> tuple[list[Any], list[Any], list[Any]]:
        places: list[Any] = [["<module>", "train.py", 1]]
        stacks: list[Any] = []
        looks: list[Any] = []
        # Random intervals do not align with loops of the program.
        at, moment, rng = 0, 137.0, random.Random(1)
        while moment < self.now_us:
            while at + 1 < len(self._activities) and self._activities[at + 1][0] <= moment:
                at += 1
            _, line, stage = self._activities[at]
            frames, lines = [0], [int(line.rpartition(":")[2])]
            if stage in _FRAMES:
                name, file, first_line = _FRAMES[stage]
                place = [name, file, first_line]
                if place not in places:
                    places.append(place)
                frames.append(places.index(place))
                lines.append(first_line + 1)
            stack = [frames, lines]
            if stack not in stacks:
                stacks.append(stack)
            looks.append([WINDOW_NS + round(moment * 1e3), PID, 0, stacks.index(stack)])
            moment += _PERIOD_US * rng.uniform(0.5, 1.5)
        return places, stacks, looks

    def write(self, directory: Path, number: int = 0) -> None:
        """Write the window as files of a profile."""
        header, events = self.window()
        trace = f"main-{PID}-{number}{TRACE_SUFFIX}"
        (directory / f"main-{PID}-{number}{SUFFIX}").write_text(
            json.dumps({**header, "trace": trace})
        )
        (directory / trace).write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))


def program(body: Callable[[Machine], None], *, ms: float = 250.0) -> Machine:
    """Return a machine that has run the body of a loop for `ms` milliseconds."""
    machine = Machine()
    while machine.now_us < ms * 1e3:
        body(machine)
    return machine


def profiled(machine: Machine, **fields: Any) -> Session:
    """Return a session of ten seconds that repeat the window of a machine, with samples."""
    window = parse_window(*machine.window())
    looks = list(window.looks["stack"])
    samples = [
        sample(
            *(
                f"{frame.function} ({frame.file}:{line})"
                for frame, line in zip(stack.frames, stack.lines, strict=True)
            ),
            elapsed_s=10.0 * looks.count(number) / len(looks),
            on_core_s=10.0 * looks.count(number) / len(looks),
        )
        for number, stack in enumerate(window.stacks)
    ]
    main = process(
        samples=samples,
        periods=[period(10.0, cpu_s=10.0)],
        cores=8,
        **fields,
    )
    return session(main, gpu=[window])
