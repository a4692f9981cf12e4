"""`hotloop doctor`: what this machine has for training, and what would be faster."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

from hotloop import cache
from hotloop.cli.tables import plain_table, print_table, wide_console
from hotloop.system.cores import available_cores, free_cores
from hotloop.system.memory import available_memory, in_units

# Extra → modules that it brings.
EXTRAS = {
    "train": ("torch", "gymnasium", "tyro", "numba", "matplotlib", "safetensors", "tomli_w"),
    "replay": ("numba",),
    "bandit": ("numba", "matplotlib"),
    "mujoco": ("mujoco",),
    "box2d": ("Box2D",),
    "atari": ("ale_py", "cv2", "envpool"),
    "doom": ("vizdoom", "cv2"),
    "ray": ("ray",),
    "sweep": ("optuna", "cmaes"),
    "tune": ("ray", "pandas", "tensorboardX"),
    "wandb": ("wandb",),
    "tensorboard": ("tensorboard",),
    "parquet": ("pyarrow",),
    "video": ("imageio_ffmpeg", "pygame"),
    "export": ("onnx", "onnxscript", "onnxruntime"),
    "profile": ("py_spy",),
}
# Compiled parts, each with a slower twin in Python.
_COMPILED = {
    "hotloop.timing._recorder": "spans",
    "hotloop.system._files": "reading of /proc",
    "hotloop.profiler.collect._ticker": "the profiler's clock",
}
# Instructions by the names that Linux and macOS give them.
_INSTRUCTIONS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "amx_int8", "asimd", "bf16", "sve")
_LITTLE_SHARED = 2**28


class Finding(NamedTuple):
    """What was looked at, what there is, and what would be better; nothing where it is well."""

    name: str
    value: str
    advice: str = ""


def run(args: list[str]) -> int:
    """Look; see `hotloop doctor --help`."""
    parser = argparse.ArgumentParser(
        prog="hotloop doctor",
        description="Say what this machine has for training (cores and quotas, memory, libraries, "
        "compiler, instructions, GPU, extras, caches), and what would be faster.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON array instead")
    options = parser.parse_args(args)
    findings = look()
    if options.json:
        json.dump([one._asdict() for one in findings], sys.stdout)
        print()
        return 0
    from rich.text import Text

    table = plain_table()
    table.show_header = False
    table.add_column()
    table.add_column(overflow="fold")
    for one in findings:
        table.add_row(one.name, Text(one.value))
    print_table(table, wide_console())
    advice = [one for one in findings if one.advice]
    print("\nwhat would be faster:" if advice else "\nnothing that would make it faster was found")
    for one in advice:
        print(f"- {one.name}: {one.advice}")
    return 0


def look() -> list[Finding]:
    """Return what there is, and what would be better."""
    return [
        Finding("hotloop", _version("hotloop") or "from its source"),
        Finding("Python", f"{platform.python_version()}, {platform.platform()}"),
        *_cores(),
        *_memory(),
        _instructions(),
        _compiler(),
        *_torch(),
        *_extras(),
        _parts(),
        _kept(),
    ]


def _cores() -> list[Finding]:
    own, whole, free = available_cores(), os.cpu_count() or 1, free_cores()
    value = f"{own} of {whole}" if own < whole else f"{own}"
    advice = ""
    if own < whole:
        value += ", by affinity or a quota"
        advice = "a quota or an affinity holds the others back: raise it where it is yours"
    found = [Finding("cores", value, advice)]
    if free is not None:
        busy = "other work runs on them: trainings side by side take turns" if free < own else ""
        found.append(Finding("cores that nobody else wants now", str(free), busy))
    return found


def _memory() -> list[Finding]:
    found: list[Finding] = []
    free = available_memory()
    if free is not None:
        found.append(Finding("free memory", in_units(free)))
    with contextlib.suppress(OSError):
        shared = shutil.disk_usage("/dev/shm")
        little = shared.total < _LITTLE_SHARED
        found.append(
            Finding(
                "/dev/shm",
                f"{in_units(shared.free)} free of {in_units(shared.total)}",
                "libraries that share memory there fail (hotloop's workers don't use it): a "
                "container takes --shm-size"
                if little
                else "",
            )
        )
    return found


def _instructions() -> Finding:
    flags: set[str] = set()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(("flags", "Features")):
                flags = set(line.partition(":")[2].split())
                break
    has = [name for name in _INSTRUCTIONS if name in flags]
    value = ", ".join(has) or "not known"
    if {"avx512_bf16", "amx_bf16", "bf16"} & flags:
        return Finding(
            "instructions",
            value,
            "with `--precision bfloat16`, which rounds, sac and td3 update faster",
        )
    return Finding("instructions", f"{value}; no bfloat16")


def _compiler() -> Finding:
    path = shutil.which(os.environ.get("CXX") or "g++")
    if path is None:
        return Finding(
            "C++ compiler",
            "none",
            "updates run eager, 1.3 to 4 times slower than compiled: install g++, or set CXX",
        )
    return Finding("C++ compiler", path)


def _torch() -> list[Finding]:
    version = _version("torch")
    if version is None:
        return [Finding("torch", "none", "for training: pip install 'hotloop[train]'")]
    import torch

    about = torch.__config__.parallel_info()
    mkl = next((x.strip() for x in about.splitlines() if "Math Kernel Library" in x), "")
    found = [Finding("torch", f"{version}; {'MKL' if mkl else 'no MKL'}")]
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(x) for x in range(torch.cuda.device_count())]
        found.append(Finding("GPU", ", ".join(names)))
    else:
        built = torch.version.cuda
        hidden = Path("/proc/driver/nvidia/version").exists() and built is None
        found.append(
            Finding(
                "GPU",
                "none that torch sees",
                "there is an NVIDIA driver, but this torch is built without CUDA" if hidden else "",
            )
        )
    return found


def _extras() -> list[Finding]:
    there, missing = [], []
    for extra, modules in EXTRAS.items():
        lacks = [name for name in modules if not _has(name)]
        (missing if lacks else there).append(extra)
    return [
        Finding("extras", ", ".join(there) or "none"),
        Finding(
            "extras that are missing",
            ", ".join(f"{extra} (pip install 'hotloop[{extra}]')" for extra in missing) or "none",
        ),
    ]


def _has(module: str) -> bool:
    if module == "py_spy":  # a program and no module
        return _version("py-spy") is not None
    return importlib.util.find_spec(module) is not None


def _parts() -> Finding:
    lacking: list[str] = []
    advice = ""
    for name, about in _COMPILED.items():
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            lacking.append(about)
            advice = "install a C compiler, then reinstall hotloop: they run in Python, and slower"
        except ImportError as error:  # built for a version of Python that it does not know
            lacking.append(f"{about} ({str(error).partition(':')[0]})")
    return Finding("compiled parts", f"missing: {', '.join(lacking)}" if lacking else "all", advice)


def _kept() -> Finding:
    kept = cache.kept()
    size = in_units(sum(one.size for one in kept))
    where = cache.directory()
    value = f"{where}: {len(kept)}, {size}"
    above = next((x for x in (where, *where.parents) if x.exists()), where)
    if not os.access(above, os.W_OK):
        return Finding(
            "compiled updates",
            value,
            "nothing can be kept there, so each training compiles anew: set HOTLOOP_CACHE",
        )
    return Finding("compiled updates", value)


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
