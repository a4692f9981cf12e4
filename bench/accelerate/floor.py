"""Updates alone, and the floor below them: bytes, arithmetic, launches.

An update has to read and write its state, read its batch and do its products: no way of running it
is faster than the device does that, nor than one launch. What the device does is measured here:
copying for its bandwidth, a product of large matrices for its arithmetic, a tiny operation and a
graph of it for its launches.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from bench.accelerate.rows import MODES, ROWS
from bench.accelerate.updates import Updates, make_updates


def synchronise(device: torch.device) -> None:
    """Wait until the device has done all."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_each(
    work: Callable[[int], None],
    device: torch.device,
    seconds: float,
    count: int,
    of: Callable[[list[float]], float] = statistics.median,
) -> float:
    """What one of `count` things takes, done at once: the median over some time, or the least."""
    taken: list[float] = []
    until = time.perf_counter() + seconds
    while len(taken) < 3 or time.perf_counter() < until:
        synchronise(device)
        began = time.perf_counter()
        work(count)
        synchronise(device)
        taken.append((time.perf_counter() - began) / count)
    return of(taken)


def measure_device(device: torch.device, seconds: float) -> dict[str, float | None]:
    """Return `bytes_per_s`, `flop_per_s` in float32, `launch_s`, `replay_s` and `in_graph_s`.

    `launch_s` is what the host takes for a tiny operation, `replay_s` for a graph of one, and
    `in_graph_s` what each takes within a graph of a hundred; None: there are no graphs.
    """
    size = 1 << (28 if device.type == "cuda" else 24)
    source = torch.ones(size // 4, device=device)
    target = torch.empty_like(source)
    side = 4096 if device.type == "cuda" else 512
    a, b = torch.ones(side, side, device=device), torch.ones(side, side, device=device)
    tiny = torch.zeros(8, device=device)

    def copies(count: int) -> None:
        for _ in range(count):
            target.copy_(source)

    def products(count: int) -> None:
        for _ in range(count):
            torch.mm(a, b)

    def launches(count: int) -> None:
        for _ in range(count):
            tiny.add_(1.0)

    # What it can do, whatever else the machine does meanwhile.
    found: dict[str, float | None] = {
        "bytes_per_s": 2 * size / seconds_each(copies, device, seconds, 5, min),
        "flop_per_s": 2 * side**3 / seconds_each(products, device, seconds, 5, min),
        "launch_s": seconds_each(launches, device, seconds, 1000),
        "replay_s": None,
        "in_graph_s": None,
    }
    if device.type == "cuda":
        one, hundred = (graph_of(lambda k=k: launches(k), device) for k in (1, 100))

        def replays(graph: Any) -> Callable[[int], None]:
            def work(count: int) -> None:
                for _ in range(count):
                    graph.replay()

            return work

        found["replay_s"] = seconds_each(replays(one), device, seconds, 500)
        found["in_graph_s"] = seconds_each(replays(hundred), device, seconds, 50) / 100
    return found


def graph_of(work: Callable[[], None], device: torch.device) -> Any:
    """Some work as a CUDA graph."""
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


def needs(updates: Updates) -> tuple[float, float]:
    """Bytes and FLOP of a batch's updates at the least.

    The state is read and written once, the batch read once. Delayed updates count with their share:
    what eight batches need, by eight.
    """
    from torch.utils.flop_counter import FlopCounterMode

    from hotloop.learner.state import tensors

    updates.make(1)  # which checks the contract on copies
    counter = FlopCounterMode(display=False)
    with counter:
        updates.make(8)
    state = sum(x.numel() * x.element_size() for x in tensors(updates.learner.state).values())
    batch = sum(x.numel() * x.element_size() for x in updates.batch if x is not None)
    return 2.0 * state + batch, counter.get_total_flops() / 8


def measure_row(
    name: str, device: torch.device, seconds: float, modes: tuple[str, ...] = MODES
) -> dict[str, Any]:
    """Return `size_bytes`, `flop`, and by mode the seconds of a batch's updates, or why not."""
    from hotloop.errors import HotloopError

    eager = make_updates(ROWS[name], "eager", device)
    size_bytes, flop = needs(eager)
    found: dict[str, Any] = {"size_bytes": size_bytes, "flop": flop, "modes": {}}
    for mode in modes:
        try:
            updates = make_updates(ROWS[name], mode, device)
            updates.make(8)  # which compiles, and captures, delayed ones too
        except HotloopError as error:
            found["modes"][mode] = {"missing": str(error).split(":")[0]}
            continue
        count = 64 if device.type == "cuda" else 4
        found["modes"][mode] = {"s": seconds_each(updates.make, device, seconds, count)}
    return found
