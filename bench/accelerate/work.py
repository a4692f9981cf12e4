"""What a job does in its own process; its figures are its last line."""

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
    """Do the work that a JSON object describes: `kind`, and the arguments of its function."""
    faulthandler.enable()
    arguments = json.loads(text)
    try:
        figures = KINDS[arguments.pop("kind")](**arguments)
    except Missing as why:
        figures = {"missing": str(why)}
    print(f"\n{FIGURES}{json.dumps(figures)}", flush=True)
    sys.stderr.flush()
    # No thread that is left, such as one of a simulator, may keep the process.
    os._exit(int(bool(figures.get("failed"))))


def facts(device: str) -> dict[str, Any]:
    """Return what the machine and its software are."""
    import torch

    import hotloop

    about: dict[str, Any] = {"name": f"CPU ({platform.machine()})"}
    if device != "cpu":
        properties = torch.cuda.get_device_properties(device)
        about = {"name": properties.name, "memory_gb": round(properties.total_memory / 1e9, 1)}
        about |= {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
        if shutil.which("nvidia-smi"):
            print(subprocess.run(["nvidia-smi"], capture_output=True, text=True).stdout)
    extensions = ("hotloop.timing._recorder", "hotloop.profiler.collect._ticker")
    return {
        "device": about,
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
    """Run a file's tests with pytest; return how many passed, failed and were skipped."""
    import pytest

    counts = {"passed": 0, "failed": 0, "skipped": 0}

    class Counter:
        """Counts the results."""

        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.when == "call" or report.outcome != "passed":
                counts[report.outcome] += 1

        def pytest_collectreport(self, report: Any) -> None:
            if report.outcome != "passed":
                counts[report.outcome] += 1

    # No test may take the job's whole time from those after it.
    pytest.main(
        ["-v", "-p", "no:cacheprovider", "-o", "timeout=60", "-m", marks, path],
        plugins=[Counter()],
    )
    if not counts["passed"] + counts["failed"]:
        raise Missing(f"{counts['skipped']} skipped, nothing ran")
    return counts


def train(**arguments: Any) -> dict[str, Any]:
    """Train for some seconds; see `trainings.train`."""
    from bench.accelerate import trainings
    from hotloop.errors import MissingExtraError

    try:
        return trainings.train(**arguments)
    except (ModuleNotFoundError, MissingExtraError) as error:
        if str(getattr(error, "name", "")).startswith(("hotloop", "bench")):
            raise
        raise Missing(str(error)) from None


def floor(row: str | None, device: str, seconds: float, modes: list[str]) -> dict[str, Any]:
    """Measure a row's updates alone, or the device."""
    import torch

    from bench.accelerate import floor

    torch.set_num_threads(1)
    if row is None:
        return dict(floor.measure_device(torch.device(device), seconds))
    return floor.measure_row(row, torch.device(device), seconds, tuple(modes))


KINDS = {"facts": facts, "check": check, "tests": tests, "train": train, "floor": floor}
