"""Checkpoints: what verifying one takes beside reading it, and what saving one takes, synced.

    python -m bench checkpoints

Each size is saved and loaded many times in turn; printed and stored are medians, in milliseconds.
The file system is the one of --folder.
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
from hotloop.policies import PolicySnapshot
from hotloop.runs import Checkpoint, Checkpoints
from hotloop.runs import checkpoints as ours
from hotloop.system.files import read_regular

# By name: bytes of the policy and of the learner.
SIZES = {"ppo, 64 × 64": (45_000, 90_000), "10 MB": (3_300_000, 6_700_000)}


def _checkpoint(number: int, policy_bytes: int, learner_bytes: int) -> Checkpoint:
    numbers = np.random.default_rng(number)
    params = numbers.standard_normal(policy_bytes // 4, np.float32)
    learner = numbers.standard_normal(learner_bytes // 4, np.float32)
    return Checkpoint(
        network={},  # which is not looked at
        snapshot=PolicySnapshot(version=1, params={"params": params}),
        arrays=lambda: {"state": learner},
        state={"timesteps": number, "iteration": number},
    )


def _ms(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1e3


def _read_only(folder: Path) -> list[Any]:
    """Read the same files, and hold them all as `load` does, without looking at digests."""
    names = ("policy.safetensors", "learner.safetensors")
    contents = {name: read_regular(folder / name) for name in names}
    read_regular(folder / "state.json")
    return [safetensors.numpy.load(content) for content in contents.values()]


def measure(policy_bytes: int, learner_bytes: int, folder: Path, repeats: int) -> dict[str, Any]:
    """Milliseconds of each, a list by name."""
    found: dict[str, list[float]] = {"save": [], "save unsynced": [], "load": [], "read": []}
    synced = ours.sync
    checkpoints = Checkpoints(folder / "checkpoints")
    for number in range(1, 2 * repeats + 1):
        is_synced = number % 2 == 0
        ours.sync = synced if is_synced else lambda *paths: None
        checkpoint = _checkpoint(number, policy_bytes, learner_bytes)
        taken = _ms(lambda checkpoint=checkpoint: checkpoints.save(checkpoint))
        found["save" if is_synced else "save unsynced"].append(taken)
        path = checkpoints.load().path
        assert path is not None
        found["load"].append(_ms(lambda: checkpoints.load().arrays()))
        found["read"].append(_ms(lambda path=path: _read_only(path)))
    ours.sync = synced
    return found


def main() -> int:
    """Measure all sizes."""
    parser = argparse.ArgumentParser(prog="python -m bench checkpoints", description=__doc__)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--folder", default=".", help="on whose file system (default: %(default)s)")
    options = parser.parse_args()
    stored: dict[str, Any] = {}
    print(f"{'':14}{'save':>9}{'unsynced':>10}{'load':>8}{'read':>8}{'verify':>8}   ms")
    for name, sizes in SIZES.items():
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            found = measure(*sizes, Path(folder), options.repeats)
        median = {what: statistics.median(ms) for what, ms in found.items()}
        pairs = zip(found["load"], found["read"], strict=True)
        median["verify"] = statistics.median(load - read for load, read in pairs)
        stored[name] = {"bytes": sum(sizes), "median_ms": median, "ms": found}
        print(
            f"{name:14}{median['save']:9.2f}{median['save unsynced']:10.2f}{median['load']:8.2f}"
            f"{median['read']:8.2f}{median['verify']:8.2f}"
        )
    print(storage.save("checkpoints", {"sizes": stored}))
    return 0
