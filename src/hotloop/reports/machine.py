"""Properties of this machine for training, with advice on what would make it faster."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
from pathlib import Path
from typing import NamedTuple

from hotloop.base import cache
from hotloop.base.cores import available_cores, free_cores
from hotloop.base.memory import available_memory, format_bytes
from hotloop.errors import install_command

# Extra → modules that it installs.
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
    "mlflow": ("mlflow", "sqlalchemy", "alembic"),
    "trackio": ("trackio",),
    "hub": ("huggingface_hub",),
    "minari": ("minari", "h5py"),
    "pettingzoo": ("pettingzoo",),
    "pandas": ("pandas",),
    "parquet": ("pyarrow",),
    "video": ("imageio_ffmpeg", "pygame"),
    "export": ("onnx", "onnxscript", "onnxruntime"),
    "profile": ("py_spy",),
    "sb3": ("stable_baselines3", "sb3_contrib"),
}
# Compiled parts. Each has a slower version in Python.
_COMPILED = {
    "hotloop.timing._recorder": "spans",
    "hotloop.base._files": "reading of /proc",
    "hotloop.profiler.collect._ticker": "the profiler's clock",
}
# Instruction sets, by their names on Linux and macOS.
_INSTRUCTIONS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "amx_int8", "asimd", "bf16", "sve")
_MIN_SHARED_BYTES = 2**28


class Finding(NamedTuple):
    """One property of the machine, its value, and advice if something can be improved."""

    name: str
    value: str
    advice: str = ""


def collect_findings() -> list[Finding]:
    """Return the properties of this machine, with advice."""
    return [
        Finding("hotloop", _version("hotloop") or "run from source"),
        Finding("Python", f"{platform.python_version()}, {platform.platform()}"),
        *_cores(),
        *_memory(),
        _instructions(),
        _compiler(),
        *_torch(),
        *_extras(),
        _compiled_parts(),
        _compiled_updates(),
    ]


def _cores() -> list[Finding]:
    usable, total, free = available_cores(), os.cpu_count() or 1, free_cores()
    value = f"{usable} of {total}" if usable < total else f"{usable}"
    advice = ""
    if usable < total:
        value += ", by affinity or a quota"
        advice = "a quota or CPU affinity blocks the other cores: raise it if you can"
    findings = [Finding("cores", value, advice)]
    if free is not None:
        busy = "other programs use the other cores: end them to train faster"
        findings.append(Finding("idle cores", str(free), busy if free < usable else ""))
    return findings


def _memory() -> list[Finding]:
    findings: list[Finding] = []
    free = available_memory()
    if free is not None:
        findings.append(Finding("free memory", format_bytes(free)))
    with contextlib.suppress(OSError):
        shared = shutil.disk_usage("/dev/shm")
        is_small = shared.total < _MIN_SHARED_BYTES
        findings.append(
            Finding(
                "/dev/shm",
                f"{format_bytes(shared.free)} free of {format_bytes(shared.total)}",
                "libraries that share memory there fail (hotloop's workers don't use it): start "
                "the container with a larger --shm-size"
                if is_small
                else "",
            )
        )
    return findings


def _instructions() -> Finding:
    flags: set[str] = set()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(("flags", "Features")):
                flags = set(line.partition(":")[2].split())
                break
    available = [name for name in _INSTRUCTIONS if name in flags]
    value = ", ".join(available) or "unknown"
    if {"avx512_bf16", "amx_bf16", "bf16"} & flags:
        return Finding(
            "instructions",
            value,
            "`--precision bfloat16` makes sac and td3 update faster, at lower precision",
        )
    return Finding("instructions", f"{value}; no bfloat16")


def _compiler() -> Finding:
    path = shutil.which(os.environ.get("CXX") or "g++")
    if path is None:
        return Finding(
            "C++ compiler",
            "none",
            "updates run uncompiled, 1.3 to 4 times slower: install g++, or set CXX",
        )
    return Finding("C++ compiler", path)


def _torch() -> list[Finding]:
    version = _version("torch")
    if version is None:
        return [Finding("torch", "none", f"training needs it: {install_command('train')}")]
    import torch

    libraries = torch.__config__.parallel_info()
    mkl = next((x.strip() for x in libraries.splitlines() if "Math Kernel Library" in x), "")
    findings = [Finding("torch", f"{version}; {'MKL' if mkl else 'no MKL'}")]
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(x) for x in range(torch.cuda.device_count())]
        findings.append(Finding("GPU", ", ".join(names)))
    else:
        cuda_version = torch.version.cuda
        hidden = Path("/proc/driver/nvidia/version").exists() and cuda_version is None
        findings.append(
            Finding(
                "GPU",
                "none visible to torch",
                "there is an NVIDIA driver, but this torch is built without CUDA" if hidden else "",
            )
        )
    return findings


def _extras() -> list[Finding]:
    installed, missing = [], []
    for extra, modules in EXTRAS.items():
        absent = [name for name in modules if not _is_installed(name)]
        (missing if absent else installed).append(extra)
    return [
        Finding("extras", ", ".join(installed) or "none"),
        Finding(
            "missing extras",
            f"{', '.join(missing)} ({install_command(','.join(missing))})" if missing else "none",
        ),
    ]


def _is_installed(module: str) -> bool:
    if module == "py_spy":  # py-spy is a program, not a module
        return _version("py-spy") is not None
    return importlib.util.find_spec(module) is not None


def _compiled_parts() -> Finding:
    missing: list[str] = []
    advice = ""
    for name, part in _COMPILED.items():
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            missing.append(part)
            advice = "install a C compiler, then reinstall hotloop: the Python versions are slower"
        except ImportError as error:  # built for another version of Python
            missing.append(f"{part} ({str(error).partition(':')[0]})")
    return Finding("compiled parts", f"missing: {', '.join(missing)}" if missing else "all", advice)


def _compiled_updates() -> Finding:
    files = cache.entries()
    size = format_bytes(sum(file.size_bytes for file in files))
    path = cache.directory()
    value = f"{path}: {len(files)}, {size}"
    reason = cache.unusable_reason()
    advice = f"each training compiles again, since {reason}" if reason else ""
    return Finding("compiled updates", value, advice)


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
