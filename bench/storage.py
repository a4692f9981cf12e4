"""Reading and writing of results, with a description of the machine."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "bench" / "results"
DOCS = ROOT / "docs"


def machine() -> dict[str, Any]:
    """Return the processor, cores, date and versions."""
    model = platform.processor() or "unknown"
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
        model = names[0] if names else model
    libraries = ("hotloop", "numpy", "torch", "gymnasium", "stable_baselines3", "sbx-rl", "jax")
    versions = {"python": platform.python_version(), **versions_of(libraries)}
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "date": time.strftime("%Y-%m-%d"),
        "versions": versions,
    }


def versions_of(libraries: Sequence[str]) -> dict[str, str]:
    """Return the versions of the libraries that are installed."""
    versions: dict[str, str] = {}
    for library in libraries:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[library] = importlib.metadata.version(library)
    return versions


def file_name(env_id: str) -> str:
    """Return an environment's id in the form used in file names, such as `ALE-Pong-v5`."""
    return env_id.rpartition(":")[2].replace("/", "-")


def save(name: str, result: dict[str, Any], *, peers: Sequence[str] = ()) -> Path:
    """Write `bench/results/<name>.json`, with the machine's description.

    Args:
        name: name of the result.
        result: measured figures.
        peers: further libraries whose versions are stored.
    """
    if peers:
        result = {"peers_versions": versions_of(peers), **result}
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    # One line per entry: with indentation, line breaks would dominate the lists of episodes.
    entries = {"machine": machine(), **result}
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in entries.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    return path


def load(name: str) -> dict[str, Any]:
    """Return a stored result."""
    return json.loads((RESULTS / f"{name}.json").read_text())
