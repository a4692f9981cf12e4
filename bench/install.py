"""Size and time of an installation, and of the first training after it.

    python -m bench install
    python -m bench install --torch-index https://download.pytorch.org/whl/cpu

A wheel of this checkout (or the one given by `--wheel`) is installed into fresh virtual
environments, once alone and once as `hotloop[train]` after torch. Sizes are the bytes added to an
empty environment. Times include downloads and depend on the network and pip's cache. Then the first
training runs twice, with an empty home directory so that all caches start empty.

`install.json`: `sizes` and `seconds` by installation, and `trainings`, each with `wall_s`, `cpu_s`
and `load`, the load average before it.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import storage
from bench.markdown import table

COMMAND = ("train", "ppo", "--env-id", "CartPole-v1", "--total-timesteps", "50000")
MB = 1e6


def size_bytes(directory: Path) -> int:
    """Return the bytes of all files below a directory. Hard links count once."""
    sizes: dict[tuple[int, int], int] = {}
    for path in directory.rglob("*"):
        if path.is_file() and not path.is_symlink():
            status = path.stat()
            sizes[status.st_dev, status.st_ino] = status.st_size
    return sum(sizes.values())


def timed(command: list[str], directory: Path, environment: dict[str, str]) -> dict[str, float]:
    """Run a command; return its wall time, CPU time (with children) and the load before it."""
    load = os.getloadavg()[0]
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        command, cwd=directory, env=environment, check=True, stdout=subprocess.DEVNULL, text=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall_s": time.perf_counter() - start, "cpu_s": cpu_s, "load": load}


def build(directory: Path) -> Path:
    """Build a wheel of this checkout; return its path."""
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir"]
    subprocess.run(
        [*command, str(directory), str(storage.ROOT)], check=True, stdout=subprocess.DEVNULL
    )
    return next(directory.glob("*.whl"))


def measure(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """Install, train, and return the figures."""
    home = directory / "home"
    home.mkdir()
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("XDG_", "PYTHON", "HOTLOOP", "VIRTUAL_ENV"))
    }
    wheel = str(options.wheel.resolve() if options.wheel else build(directory / "wheel"))
    index = ["--index-url", options.torch_index] if options.torch_index else []
    steps = {
        "base": [[wheel]],
        "train": [[options.torch, *index], [f"{wheel}[train]"]],
    }
    result: dict[str, Any] = {"sizes": {}, "seconds": {}, "trainings": []}
    for name, installs in steps.items():
        folder = directory / name
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        empty, duration_s = size_bytes(folder), 0.0
        for arguments in installs:
            pip = [str(folder / "bin" / "pip"), "install", "--quiet", *arguments]
            duration_s += timed(pip, directory, environment)["wall_s"]
        result["sizes"][name] = size_bytes(folder) - empty
        result["seconds"][name] = duration_s
    hotloop = str(directory / "train" / "bin" / "hotloop")
    environment["HOME"] = str(home)
    result["trainings"] = [timed([hotloop, *COMMAND], directory, environment) for _ in range(2)]
    return result


def install_table() -> str:
    """Return sizes and times of installations and trainings."""
    result = storage.load("install")
    rows = [["", "size, MB", "time, s", "CPU time, s"]]
    labels = {"base": "`pip install hotloop`", "train": "torch for the CPU and `hotloop[train]`"}
    for name, label in labels.items():
        seconds = f"{result['seconds'][name]:.0f}"
        rows.append([label, f"{result['sizes'][name] / MB:,.0f}", seconds, ""])
    for label, training in zip(
        ("the first training", "the second training"), result["trainings"], strict=True
    ):
        cells = (f"{training[name]:.1f}" for name in ("wall_s", "cpu_s"))
        rows.append([f"{label}, 50,000 steps of CartPole-v1", "", *cells])
    return table(*rows)


def main() -> int:
    """Measure and store."""
    parser = argparse.ArgumentParser(
        prog="python -m bench install",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--wheel", type=Path, help="wheel to install (default: build one)")
    parser.add_argument(
        "--torch", default="torch", help="requirement installed before hotloop[train]"
    )
    parser.add_argument("--torch-index", help="package index for torch")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hotloop-install-") as directory:
        result = measure(options, Path(directory))
    storage.save("install", {"command": " ".join(COMMAND), **result})
    print(install_table())
    return 0
