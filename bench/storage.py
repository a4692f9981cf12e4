"""Where results are kept, and what every result says of the machine that it comes from."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, Any]:
    """Processor, cores, date and versions."""
    model = platform.processor() or "unknown"
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
        model = names[0] if names else model
    versions = {"python": platform.python_version()}
    libraries = ("hotloop", "numpy", "torch", "gymnasium", "stable_baselines3", "sbx-rl", "jax")
    for library in libraries:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[library] = importlib.metadata.version(library)
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "date": time.strftime("%Y-%m-%d"),
        "versions": versions,
    }


def save(name: str, result: dict[str, Any]) -> Path:
    """Write `bench/results/<name>.json`, with the machine's description."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    # A line for each entry: episodes one by one would make most of a file of their line ends.
    entries = {"machine": machine(), **result}
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in entries.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    return path


def load(name: str) -> dict[str, Any]:
    """Read a result back."""
    return json.loads((RESULTS / f"{name}.json").read_text())
