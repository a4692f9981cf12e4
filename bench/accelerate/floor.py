"""Duration of updates alone, and its lower bound from bytes, arithmetic and launches.

An update reads and writes its state, reads its batch and computes its matrix products. It cannot be
faster than the device does that, nor than one launch. The device's rates are measured here: memory
bandwidth by copies, arithmetic by a product of large matrices, launches by a tiny operation and a
graph of it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from bench.accelerate.rows import MODES, ROWS
from bench.accelerate.updates import Updates, make_updates


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished all work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_each(
    work: Callable[[int], None],
    device: torch.device,
    seconds: float,
    count: int,
    reduce: Callable[[list[float]], float] = statistics.median,
) -> float:
    """Return the seconds of one of `count` operations, reduced over repeats for some seconds."""
    durations_s: list[float] = []
    until = time.perf_counter() + seconds
    while len(durations_s) < 3 or time.perf_counter() < until:
        synchronize(device)
        start_s = time.perf_counter()
        work(count)
        synchronize(device)
        durations_s.append((time.perf_counter() - start_s) / count)
    return reduce(durations_s)


def measure_device(device: torch.device, seconds: float) -> dict[str, float | None]:
    """Return `bytes_per_s`, `flop_per_s` in float32, `launch_s`, `replay_s` and `in_graph_s`.

    `launch_s` is the host's time for a tiny operation, `replay_s` for a graph of one, and
    `in_graph_s` the time per operation in a graph of a hundred. Both are None without graphs.
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

    # The minimum excludes other load on the machine.
    figures: dict[str, float | None] = {
        "bytes_per_s": 2 * size / seconds_each(copies, device, seconds, 5, min),
        "flop_per_s": 2 * side**3 / seconds_each(products, device, seconds, 5, min),
        "launch_s": seconds_each(launches, device, seconds, 1000),
        "replay_s": None,
        "in_graph_s": None,
    }
    if device.type == "cuda":
        single, hundred = (capture_graph(lambda k=k: launches(k), device) for k in (1, 100))

        def replays(graph: Any) -> Callable[[int], None]:
            def work(count: int) -> None:
                for _ in range(count):
                    graph.replay()

            return work

        figures["replay_s"] = seconds_each(replays(single), device, seconds, 500)
        figures["in_graph_s"] = seconds_each(replays(hundred), device, seconds, 50) / 100
    return figures


def capture_graph(work: Callable[[], None], device: torch.device) -> Any:
    """Capture work as a CUDA graph."""
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


def min_bytes_and_flop(updates: Updates) -> tuple[float, float]:
    """Return the smallest possible bytes and FLOP of a batch's updates.

    The state is read and written once, the batch is read once. Delayed updates count with their
    share: the sum over eight batches divided by eight.
    """
    from torch.utils.flop_counter import FlopCounterMode

    from hotloop.learner.state import tensors

    updates.make(1)  # the first update checks the contract on copies
    counter = FlopCounterMode(display=False)
    with counter:
        updates.make(8)
    state = sum(x.numel() * x.element_size() for x in tensors(updates.learner.state).values())
    batch = sum(x.numel() * x.element_size() for x in updates.batch if x is not None)
    return 2.0 * state + batch, counter.get_total_flops() / 8


def measure_row(
    name: str, device: torch.device, seconds: float, modes: tuple[str, ...] = MODES
) -> dict[str, Any]:
    """Return `size_bytes`, `flop`, and by mode the seconds of a batch's updates or `missing`."""
    from hotloop.errors import HotloopError

    eager = make_updates(ROWS[name], "eager", device)
    size_bytes, flop = min_bytes_and_flop(eager)
    figures: dict[str, Any] = {"size_bytes": size_bytes, "flop": flop, "modes": {}}
    for mode in modes:
        try:
            updates = make_updates(ROWS[name], mode, device)
            updates.make(8)  # compiles and captures, also delayed updates
        except HotloopError as error:
            figures["modes"][mode] = {"missing": str(error).split(":")[0]}
            continue
        count = 64 if device.type == "cuda" else 4
        figures["modes"][mode] = {"s": seconds_each(updates.make, device, seconds, count)}
    return figures
