"""From an empty folder to a first training: what installing takes, and the first command.

    python -m bench install
    python -m bench install --torch-index https://download.pytorch.org/whl/cpu

A wheel is built of this checkout (or `--wheel` names one) and installed into fresh virtual
environments, once alone and once as `hotloop[train]` after torch. Sizes are of what is added to an
empty environment. Seconds of downloads are the network's as much as ours; pip's own cache is used
as it is. Then comes the first command, with an empty home, so that nothing is found in any cache,
and the same once more. How busy the machine was stands with the results.

`install.json`: `sizes` and `seconds` by what is installed, `trainings`, each with `wall_s` and
`cpu_s`, and `load`, the load average before each of them.
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
    """Bytes of all files below a directory; a file with several names counts once."""
    sizes: dict[tuple[int, int], int] = {}
    for path in directory.rglob("*"):
        if path.is_file() and not path.is_symlink():
            about = path.stat()
            sizes[about.st_dev, about.st_ino] = about.st_size
    return sum(sizes.values())


def timed(command: list[str], directory: Path, environment: dict[str, str]) -> dict[str, float]:
    """Run a command; its wall time and its processor time, children included."""
    load = os.getloadavg()[0]
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        command, cwd=directory, env=environment, check=True, stdout=subprocess.DEVNULL, text=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall_s": time.perf_counter() - start, "cpu_s": cpu_s, "load": load}


def build(directory: Path) -> Path:
    """A wheel of this checkout."""
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir"]
    subprocess.run(
        [*command, str(directory), str(storage.ROOT)], check=True, stdout=subprocess.DEVNULL
    )
    return next(directory.glob("*.whl"))


def measure(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """Install, train, and return what was measured."""
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
        empty, took = size_bytes(folder), 0.0
        for what in installs:
            pip = [str(folder / "bin" / "pip"), "install", "--quiet", *what]
            took += timed(pip, directory, environment)["wall_s"]
        result["sizes"][name] = size_bytes(folder) - empty
        result["seconds"][name] = took
    hotloop = str(directory / "train" / "bin" / "hotloop")
    environment["HOME"] = str(home)
    result["trainings"] = [timed([hotloop, *COMMAND], directory, environment) for _ in range(2)]
    return result


def install_table() -> str:
    """What is installed and trained, its size, and its seconds."""
    result = storage.load("install")
    rows = [["", "adds, MB", "s", "of a processor, s"]]
    abouts = {"base": "`pip install hotloop`", "train": "torch for the CPU and `hotloop[train]`"}
    for name, about in abouts.items():
        seconds = f"{result['seconds'][name]:.0f}"
        rows.append([about, f"{result['sizes'][name] / MB:,.0f}", seconds, ""])
    for about, training in zip(
        ("the first training", "the second"), result["trainings"], strict=True
    ):
        cells = (f"{training[name]:.1f}" for name in ("wall_s", "cpu_s"))
        rows.append([f"{about}, 50,000 steps of CartPole-v1", "", *cells])
    return table(*rows)


def main() -> int:
    """Measure and store."""
    parser = argparse.ArgumentParser(
        prog="python -m bench install",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--wheel", type=Path, help="install this one; a new one by default")
    parser.add_argument("--torch", default="torch", help="what is installed before hotloop[train]")
    parser.add_argument("--torch-index", help="where that is taken from")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hotloop-install-") as directory:
        result = measure(options, Path(directory))
    storage.save("install", {"command": " ".join(COMMAND), **result})
    print(install_table())
    return 0
