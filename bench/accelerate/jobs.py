"""Jobs of a stage. Each runs in its own process and prints its figures as the last line."""

from __future__ import annotations

import faulthandler
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
from typing import Any

from bench import storage
from bench.accelerate.runner import FIGURES
from bench.measuring import Missing

# Programs and packages that trainings on a GPU may use.
PROGRAMS = ("nvidia-smi", "nvcc", "ptxas", "gcc", "g++", "ninja")
PACKAGES = (
    "hotloop", "torch", "triton", "numpy", "numba", "jax", "gymnasium", "mujoco", "ale-py",
    "envpool", "gymnax", "brax", "playground", "tyro", "safetensors",
    "rich", "matplotlib", "threadpoolctl", "pytest", "nvidia-ml-py",
)  # fmt: skip


def main(text: str) -> int:
    """Run the job described by a JSON object with `kind` and the function's arguments."""
    faulthandler.enable()
    arguments = json.loads(text)
    try:
        figures = KINDS[arguments.pop("kind")](**arguments)
    except Missing as error:
        figures = {"missing": str(error)}
    print(f"\n{FIGURES}{json.dumps(figures)}", flush=True)
    sys.stderr.flush()
    # Remaining threads, such as those of a simulator, must not keep the process alive.
    os._exit(int(bool(figures.get("failed"))))


def facts(device: str) -> dict[str, Any]:
    """Return descriptions of the machine and its software."""
    import torch

    import hotloop

    device_facts: dict[str, Any] = {"name": f"CPU ({platform.machine()})"}
    if device != "cpu":
        properties = torch.cuda.get_device_properties(device)
        device_facts = {
            "name": properties.name,
            "memory_gb": round(properties.total_memory / 1e9, 1),
        }
        device_facts |= {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
        if shutil.which("nvidia-smi"):
            print(subprocess.run(["nvidia-smi"], capture_output=True, text=True).stdout)
    extensions = ("hotloop.timing._recorder", "hotloop.profiler.collect._ticker")
    return {
        "device": device_facts,
        "machine": storage.machine(),
        "packages": storage.versions_of(PACKAGES),
        "programs": {name: shutil.which(name) for name in PROGRAMS},
        "hotloop": str(hotloop.__file__),
        "extensions": [name for name in extensions if importlib.util.find_spec(name)],
    }


def check(group: str, device: str) -> dict[str, Any]:
    """Run a group of checks."""
    import torch

    from bench.accelerate.check import run_group

    return run_group(group, torch.device(device))


def tests(path: str, marks: str) -> dict[str, Any]:
    """Run a file's tests with pytest; return the numbers of passed, failed and skipped tests."""
    import pytest

    counts = {"passed": 0, "failed": 0, "skipped": 0}

    class Counter:
        """A pytest plugin that counts results."""

        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.when == "call" or report.outcome != "passed":
                counts[report.outcome] += 1

        def pytest_collectreport(self, report: Any) -> None:
            if report.outcome != "passed":
                counts[report.outcome] += 1

    # The timeout leaves time for the following tests.
    pytest.main(
        ["-v", "-p", "no:cacheprovider", "-o", "timeout=60", "-m", marks, path],
        plugins=[Counter()],
    )
    if not counts["passed"] + counts["failed"]:
        raise Missing(f"{counts['skipped']} skipped, nothing ran")
    return counts


def train(**arguments: Any) -> dict[str, Any]:
    """Train for some seconds. See `trainings.train`."""
    from bench.accelerate import trainings
    from hotloop.errors import MissingExtraError

    try:
        return trainings.train(**arguments)
    except (ModuleNotFoundError, MissingExtraError) as error:
        if str(getattr(error, "name", "")).startswith(("hotloop", "bench")):
            raise
        raise Missing(str(error)) from None


def floor(row: str | None, device: str, seconds: float, modes: list[str]) -> dict[str, Any]:
    """Measure a row's updates alone, or the device if `row` is None."""
    import torch

    from bench.accelerate import floor

    torch.set_num_threads(1)
    if row is None:
        return dict(floor.measure_device(torch.device(device), seconds))
    return floor.measure_row(row, torch.device(device), seconds, tuple(modes))


KINDS = {"facts": facts, "check": check, "tests": tests, "train": train, "floor": floor}
