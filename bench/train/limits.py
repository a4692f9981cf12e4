"""Cost of an update's matrix products alone, beside that of the whole compiled update.

    python -m bench limits
    python -m bench limits --algorithms sac --threads 1 2 4

The products are those of the update's operations, with the same shapes, strides and types, and
outputs that are allocated before. Both are timed in turn. Figures are the minima, since other
processes only add to them. The rest of an update is elementwise work, Adam, the soft update,
reductions and copies.

`limits.json`: `rows`, a list with `algorithm`, `update`, `threads`, `mflop`, `products_ms`,
`update_ms`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bench import storage
from bench.markdown import table

ALGORITHMS = ("sac", "td3")
_PRODUCTS = {"mm": torch.mm, "bmm": torch.bmm}
_NUM_CALLS = 300


class CompiledUpdate(NamedTuple):
    """A compiled update, and its operations.

    Attributes:
        call: makes an update.
        products: functions that make its products, into their own outputs.
        flop: floating-point operations of the products.
        other_operations: number of the other operations by name, before they are fused.
    """

    call: Callable[[], Any]
    products: list[Callable[[], Any]]
    flop: int
    other_operations: Counter[str]


class _Operations(TorchDispatchMode):
    """The products and the names of the other operations."""

    def __init__(self) -> None:
        super().__init__()
        self.products: list[Callable[[], Any]] = []
        self.flop = 0
        self.others: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in _PRODUCTS:
            left, right = (x.detach() for x in args)
            out = torch.empty_like(result)
            self.products.append(lambda: _PRODUCTS[name](left, right, out=out))
            self.flop += 2 * result.numel() * left.shape[-1]
        else:
            self.others[name] += 1
        return result


def compiled_updates(name: str, threads: int) -> dict[str, CompiledUpdate]:
    """Train for a few updates of HalfCheetah-v5, and return the compiled updates by name."""
    from hotloop.algorithms import find
    from hotloop.learner import Execution, artifacts
    from hotloop.learner.state import clone, tensors
    from hotloop.training.precompile import precompile

    updates: dict[str, CompiledUpdate] = {}
    call = Execution.__call__

    def record(execution: Execution, state: Any, *args: Any) -> Any:
        if execution.name not in updates:
            state_copy, args_copy = clone(state), clone(args)
            artifact = artifacts.build(artifacts.record(execution._update, (state, *args)))
            leaves = list(tensors(args_copy).values())
            with artifacts.compiling_flag(), _Operations() as operations:
                execution._update(clone(state), *args_copy)
            updates[execution.name] = CompiledUpdate(
                lambda: artifact(state_copy, args_copy, leaves),
                operations.products,
                operations.flop,
                operations.others,
            )
        return call(execution, state, *args)

    algorithm = find(name)
    options = {"env_id": "HalfCheetah-v5", "torch_threads": threads}
    with tempfile.TemporaryDirectory() as folder:
        config = algorithm.preset(**options, runs_dir=folder)
        Execution.__call__ = record  # pyright: ignore[reportAttributeAccessIssue]
        try:
            precompile(algorithm, config)
        finally:
            Execution.__call__ = call
    return updates


def measure(update: CompiledUpdate) -> tuple[float, float]:
    """Return the seconds of the products and of the whole update."""

    def multiply() -> None:
        for product in update.products:
            product()

    seconds: dict[Callable[[], Any], list[float]] = {multiply: [], update.call: []}
    for _ in range(_NUM_CALLS):
        for function, calls in seconds.items():
            function()  # fills the caches
            start_s = time.perf_counter()
            function()
            calls.append(time.perf_counter() - start_s)
    products_s, update_s = (min(calls) for calls in seconds.values())
    return products_s, update_s


def limits_table() -> str:
    """Return a table with one row per update and number of threads."""
    rows = storage.load("limits")["rows"]
    lines = [["", "threads", "MFLOP", "products, ms", "GFLOP/s", "update, ms", "share of products"]]
    lines += [
        [
            f"{row['algorithm']}, {row['update']}",
            str(row["threads"]),
            f"{row['mflop']:.0f}",
            f"{row['products_ms']:.2f}",
            f"{row['mflop'] / row['products_ms']:.0f}",
            f"{row['update_ms']:.2f}",
            f"{row['products_ms'] / row['update_ms']:.0%}",
        ]
        for row in rows
    ]
    return table(*lines)


def main() -> int:
    """Compile, measure, print and store."""
    parser = argparse.ArgumentParser(
        prog="python -m bench limits",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--algorithms", nargs="+", default=list(ALGORITHMS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name in options.algorithms:
        for threads in options.threads:
            for update_name, update in compiled_updates(name, threads).items():
                torch.set_num_threads(threads)
                products_s, update_s = measure(update)
                rows.append(
                    {
                        "algorithm": name,
                        "update": update_name,
                        "threads": threads,
                        "mflop": update.flop / 1e6,
                        "products_ms": 1e3 * products_s,
                        "update_ms": 1e3 * update_s,
                    }
                )
                others = ", ".join(f"{k} {v}" for k, v in update.other_operations.most_common())
                print(f"{name}, {update_name}: {len(update.products)} products; {others}")
    command = " ".join(["python -m bench limits", *sys.argv[1:]])
    path = storage.save("limits", {"command": command, "rows": rows})
    print(f"{limits_table()}\nstored: {path.relative_to(storage.ROOT)}")
    return 0
