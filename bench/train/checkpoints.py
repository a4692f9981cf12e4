"""Duration of verifying, reading and saving checkpoints, with and without sync.

    python -m bench checkpoints

Each size is saved and loaded many times in turn. The figures are medians in milliseconds on the
file system of --folder.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from bench import storage
from hotloop.base.files import read_regular
from hotloop.policies import PolicySnapshot
from hotloop.runs import Checkpoint, Checkpoints
from hotloop.runs import checkpoints as checkpoint_module

# Bytes of the policy and of the learner, by name.
SIZES = {"ppo, 64 × 64": (45_000, 90_000), "10 MB": (3_300_000, 6_700_000)}


def _checkpoint(number: int, policy_bytes: int, learner_bytes: int) -> Checkpoint:
    numbers = np.random.default_rng(number)
    params = numbers.standard_normal(policy_bytes // 4, np.float32)
    learner = numbers.standard_normal(learner_bytes // 4, np.float32)
    return Checkpoint(
        network={},  # not used here
        snapshot=PolicySnapshot(version=1, params={"params": params}),
        arrays=lambda: {"state": learner},
        state={"timesteps": number, "iteration": number},
    )


def _ms(call: Callable[[], Any]) -> float:
    start_s = time.perf_counter()
    call()
    return (time.perf_counter() - start_s) * 1e3


def _read_only(folder: Path) -> list[Any]:
    """Read the same files as `load` without verifying digests."""
    names = ("policy.safetensors", "learner.safetensors")
    contents = {name: read_regular(folder / name) for name in names}
    read_regular(folder / "state.json")
    return [safetensors.numpy.load(content) for content in contents.values()]


def measure(policy_bytes: int, learner_bytes: int, folder: Path, repeats: int) -> dict[str, Any]:
    """Return lists of milliseconds by operation."""
    durations_ms: dict[str, list[float]] = {"save": [], "save unsynced": [], "load": [], "read": []}
    synced = checkpoint_module.sync
    checkpoints = Checkpoints(folder / "checkpoints")
    for number in range(1, 2 * repeats + 1):
        is_synced = number % 2 == 0
        checkpoint_module.sync = synced if is_synced else lambda *paths: None
        checkpoint = _checkpoint(number, policy_bytes, learner_bytes)
        duration_ms = _ms(lambda checkpoint=checkpoint: checkpoints.save(checkpoint))
        durations_ms["save" if is_synced else "save unsynced"].append(duration_ms)
        path = checkpoints.load().path
        assert path is not None
        durations_ms["load"].append(_ms(lambda: checkpoints.load().arrays()))
        durations_ms["read"].append(_ms(lambda path=path: _read_only(path)))
    checkpoint_module.sync = synced
    return durations_ms


def main() -> int:
    """Measure all sizes."""
    parser = argparse.ArgumentParser(prog="python -m bench checkpoints", description=__doc__)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument(
        "--folder", default=".", help="file system to measure (default: %(default)s)"
    )
    options = parser.parse_args()
    stored: dict[str, Any] = {}
    print(f"{'':14}{'save':>9}{'unsynced':>10}{'load':>8}{'read':>8}{'verify':>8}   ms")
    for name, sizes in SIZES.items():
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            durations_ms = measure(*sizes, Path(folder), options.repeats)
        median = {operation: statistics.median(ms) for operation, ms in durations_ms.items()}
        pairs = zip(durations_ms["load"], durations_ms["read"], strict=True)
        median["verify"] = statistics.median(load - read for load, read in pairs)
        stored[name] = {"bytes": sum(sizes), "median_ms": median, "ms": durations_ms}
        print(
            f"{name:14}{median['save']:9.2f}{median['save unsynced']:10.2f}{median['load']:8.2f}"
            f"{median['read']:8.2f}{median['verify']:8.2f}"
        )
    print(storage.save("checkpoints", {"sizes": stored}))
    return 0
