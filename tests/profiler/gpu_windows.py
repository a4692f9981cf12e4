"""Windows on a GPU, made of programs: a host that launches, and a device that takes its time.

    one = Machine()
    while one.now_us < 250_000:
        one.launch(3, at="train.py:40", stage="update")
        one.synchronise(at="train.py:41", stage="update")
    about, events = one.window()

What comes out is what a profiler's window leaves: Kineto's events in Chrome's format, on a clock of
its own, and what is written beside them. Kernels run in the order of their launches, on one stream.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hotloop.profiler.session import Session
from hotloop.profiler.session.kineto import window
from hotloop.timing.gpu_window import MARKER, SUFFIX, TRACE_SUFFIX
from tests.profiler.sessions import START_NS, period, process, seen, session

WINDOW_NS = START_NS + 3_000_000_000
# The trace's clock is the wall's; what stands between it and ours is found out.
KINETO_AHEAD_NS = 1_700_000_000_000_000_000 // 1000
PID, IDENT = 100, 0x7F00_DEAD_BEEF
CALL_US = 5.0
_PERIOD_US = 2000.0
_FRAMES = {
    "env": ("Walker.step", "/lib/python3.12/site-packages/gymnasium/envs/walker.py", 7),
    "update": ("backward", "/lib/python3.12/site-packages/torch/autograd/__init__.py", 90),
}


class Machine:
    """A host and a device; times are microseconds since the window began."""

    def __init__(self) -> None:
        self.now_us = 0.0
        self.free_us = 0.0
        self.events: list[dict[str, Any]] = []
        self.spans: dict[str, list[float]] = {}
        self._doing: list[tuple[float, str, str]] = []
        self._correlation = 100

    def host(self, us: float, *, at: str, stage: str = "other") -> None:
        """The host works by itself, at a line of `train.py`."""
        self._doing.append((self.now_us, at, stage))
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
        """The host takes `us` for an operation, 5 of them in the call, and a kernel follows."""
        self.host(us - CALL_US, at=at, stage=stage)
        number = self._call("cudaLaunchKernel", CALL_US)
        self._work("kernel", f"void at::native::{name}<4>(int)", kernel_us, number)

    def replay(self, kernels_us: list[float], *, at: str) -> None:
        """The host launches a graph."""
        self.host(5, at=at, stage="update")
        number = self._call("cudaGraphLaunch", 10)
        for us in kernels_us:
            self._work("kernel", "fused", us, number)

    def synchronise(
        self, *, at: str, stage: str = "update", name: str = "cudaStreamSynchronize"
    ) -> None:
        """The host waits until the device has done all."""
        self._doing.append((self.now_us, at, stage))
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
        """The host asks for a copy: "Memcpy HtoD (Pageable -> Device)"."""
        self._doing.append((self.now_us, at, stage))
        number = self._call("cudaMemcpyAsync", host_us)
        self._work("gpu_memcpy", name, us, number, bytes=size_bytes)

    def span(self, name: str, us: float) -> None:
        """A span of the program's ended."""
        sums = self.spans.setdefault(name, [0, 0.0])
        sums[0] += 1
        sums[1] += us

    def _call(self, name: str, us: float) -> int:
        self._correlation += 1
        # Of a thread that did not start it Kineto knows 32 bits of the POSIX number, signed.
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
        """What is written beside the trace, and the trace's events."""
        end_ns = WINDOW_NS + round(self.now_us * 1e3)
        markers = [WINDOW_NS - 30_000, WINDOW_NS - 10_000, end_ns + 10_000, end_ns + 30_000]
        events = [{"ph": "M", "name": "process_name", "pid": PID, "args": {"name": "python"}}]
        for at_ns in markers:
            ts = (at_ns + KINETO_AHEAD_NS) / 1e3 + 1
            one = {"cat": "user_annotation", "name": MARKER, "pid": PID, "tid": 7}
            events.append({"ph": "X", **one, "ts": ts, "dur": 4.0, "args": {}})
        places, stacks, looks = self._seen()
        about = {
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
        return about, events + self.events

    def _seen(self) -> tuple[list[Any], list[Any], list[Any]]:
        places: list[Any] = [["<module>", "train.py", 1]]
        stacks: list[Any] = []
        looks: list[Any] = []
        # In step with no loop of a program's.
        at, moment, rng = 0, 137.0, random.Random(1)
        while moment < self.now_us:
            while at + 1 < len(self._doing) and self._doing[at + 1][0] <= moment:
                at += 1
            _, line, stage = self._doing[at]
            frames, lines = [0], [int(line.rpartition(":")[2])]
            if stage in _FRAMES:
                place = list(_FRAMES[stage])
                if place not in places:
                    places.append(place)
                frames.append(places.index(place))
                lines.append(place[2] + 1)
            stack = [frames, lines]
            if stack not in stacks:
                stacks.append(stack)
            looks.append([WINDOW_NS + round(moment * 1e3), PID, 0, stacks.index(stack)])
            moment += _PERIOD_US * rng.uniform(0.5, 1.5)
        return places, stacks, looks

    def write(self, directory: Path, number: int = 0) -> None:
        """As files of a profile."""
        about, events = self.window()
        trace = f"main-{PID}-{number}{TRACE_SUFFIX}"
        (directory / f"main-{PID}-{number}{SUFFIX}").write_text(
            json.dumps({**about, "trace": trace})
        )
        (directory / trace).write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))


def program(once: Callable[[Machine], None], *, ms: float = 250.0) -> Machine:
    """A machine on which a loop's body ran again and again for some time."""
    one = Machine()
    while one.now_us < ms * 1e3:
        once(one)
    return one


def profiled(machine: Machine, **fields: Any) -> Session:
    """A session of ten seconds that were all like this window, sampled throughout."""
    one = window(*machine.window())
    looks = list(one.looks["stack"])
    samples = [
        seen(
            *(
                f"{frame.function} ({frame.file}:{line})"
                for frame, line in zip(stack.frames, stack.lines, strict=True)
            ),
            elapsed_s=10.0 * looks.count(number) / len(looks),
            on_core_s=10.0 * looks.count(number) / len(looks),
        )
        for number, stack in enumerate(one.stacks)
    ]
    main = process(
        samples=samples,
        periods=[period(10.0, cpu_s=10.0)],
        cores=8,
        **fields,
    )
    return session(main, gpu=[one])
