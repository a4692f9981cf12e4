"""Checks that run in every cell of the matrix, each with hotloop's own commands.

A check raises `CheckFailed` if something does not work. It returns a note for the table, which is
mostly empty.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench.matrix.cells import Cell
from bench.matrix.environment import CheckFailed, Environment
from bench.storage import ROOT

PROGRAMS = Path(__file__).parent / "programs"
CARTPOLE = ("--env-id", "CartPole-v1")
_OFF_POLICY = "--learning-starts 100 --hidden-sizes 32 32 --batch-size 32 --torch-threads 1"
# Options that make a training of each algorithm take seconds.
TRAININGS = {
    "PPO": "ppo --env-id CartPole-v1 --total-timesteps 2048 --hidden-sizes 32 32",
    "SAC": f"sac --env-id Pendulum-v1 --total-timesteps 400 {_OFF_POLICY}",
    "DQN": f"dqn --env-id CartPole-v1 --total-timesteps 400 {_OFF_POLICY}",
    "LSTM": "ppo --env-id CartPole-v1 --total-timesteps 1024 --hidden-sizes 32 --memory lstm:16 "
    "--num-steps 32 --sequence-length 8",
}


class Check(NamedTuple):
    """A row of the table.

    Attributes:
        about: The row's label.
        run: Raises `CheckFailed`, or returns a note.
        extra: The extra that it needs. Cells without it leave it out.
    """

    label: str
    run: Callable[[Environment], str]
    extra: str = ""

    def runs_in(self, cell: Cell) -> bool:
        """Return whether a cell has the extra that the check needs."""
        return not self.extra or self.extra in cell.extras


def check_wheel(env: Environment) -> str:
    """Import the extensions, print help and version, profile a script."""
    env.run(str(ROOT / "tests" / "smoke.py"))
    env.run("-m", "pip", "check")
    return ""


def check_profile(name: str, stack: tuple[str, ...], env: Environment) -> str:
    """Profile a program; look in the profile for a stack with all of these names."""
    out = env.work / f"profile-{name}"
    text = env.hotloop("profile", "--out", str(out), str(PROGRAMS / f"{name}.py"))
    if "total 53332933334000000" not in text or "exit code 0" not in text:
        raise CheckFailed(f"expected the program's output and exit code 0, got {text[-300:]}")
    # Python 3.10 has no extension of the profiler; the report mentions that once.
    if text.count("C extension is not available") != (env.cell.python == "3.10"):
        raise CheckFailed(f"expected the Python fallback on 3.10 alone, got {text[-300:]}")
    folded = env.work / f"{name}.txt"
    env.hotloop("report", str(out), "--folded", str(folded))
    lines = folded.read_text(encoding="utf-8").splitlines()
    if not any(all(part in line for part in stack) for line in lines):
        raise CheckFailed(f"expected a stack with {' and '.join(stack)} in the profile, got none")
    return ""


def check_training(name: str, execution: str, env: Environment) -> str:
    """Train for some seconds; compare the metrics with the options."""
    run = env.work / f"{name}-{execution}"
    before = _artifacts(env)
    options = TRAININGS[name].split()
    env.hotloop("train", *options, "--execution", execution, "--run-dir", str(run))
    _check_metrics(run, int(options[options.index("--total-timesteps") + 1]))
    if execution == "compile" and _artifacts(env) == before:
        return "by torch.compile, without AOTInductor"
    return ""


def _artifacts(env: Environment) -> set[str]:
    return {path.name for path in env.cache.glob("*.so")}


def _check_metrics(run: Path, timesteps: int) -> None:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [value for row in rows for name, value in row.items() if name.endswith("loss")]
    if not losses or not all(map(math.isfinite, losses)):
        raise CheckFailed(f"expected finite losses in {run.name}/metrics.jsonl, got {losses}")
    if rows[-1]["timesteps"] < timesteps:
        raise CheckFailed(f"expected {timesteps} steps, got {rows[-1]['timesteps']}")


def check_workers(env: Environment) -> str:
    """Train with two worker processes, in lock-step and asynchronously."""
    for algorithm in ("ppo", "appo"):
        run = env.work / f"workers-{algorithm}"
        options = ("--total-timesteps", "4096", "--workers", "2", "--run-dir", str(run))
        env.hotloop("train", algorithm, *CARTPOLE, "--execution", "eager", *options)
        accounting = json.loads((run / "accounting.json").read_text())
        if accounting["collected"] < 4096:
            raise CheckFailed(f"expected 4096 steps of the workers, got {accounting}")
    return ""


def check_resume(env: Environment) -> str:
    """Kill a training, resume it, and compare its weights with those of an uninterrupted one."""
    options = (
        *("train", "ppo", *CARTPOLE, "--total-timesteps", "20480", "--execution", "eager"),
        *("--checkpoint-interval", "2048"),
    )
    killed, uninterrupted = env.work / "killed", env.work / "whole"
    process = env.start("-m", "hotloop", *options, "--run-dir", str(killed))
    deadline = time.monotonic() + 300
    while not list(killed.glob("checkpoints/step-*")):
        if process.poll() is not None or time.monotonic() > deadline:
            raise CheckFailed(f"the training saved no checkpoint: {process.communicate()[1]}")
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    if process.returncode != -signal.SIGKILL:
        raise CheckFailed("the training had ended before it was killed")
    env.hotloop("resume", str(killed))
    env.hotloop(*options, "--run-dir", str(uninterrupted))
    if _weights(killed) != _weights(uninterrupted):
        raise CheckFailed("the resumed run's weights are not those of the uninterrupted one")
    return ""


def _weights(run: Path) -> str:
    last = max(run.glob("checkpoints/step-*"))
    return hashlib.sha256((last / "policy.safetensors").read_bytes()).hexdigest()


def check_policy(env: Environment) -> str:
    """Load a trained policy, and a copy of it from another place; compare their actions."""
    env.run(str(PROGRAMS / "policy.py"), str(env.work / "PPO-eager"))
    return ""


def check_export(env: Environment) -> str:
    """Export a policy for NumPy and for ONNX."""
    run = env.work / "PPO-eager"
    env.hotloop("export", "--format", "numpy", str(run))
    env.hotloop("export", "--format", "onnx", str(run))
    for name in ("policy.npz", "policy.py", "policy.onnx"):
        if not (run / "export" / name).is_file():
            raise CheckFailed(f"the export wrote no {name}")
    return ""


def check_seeds(execution: str, env: Environment) -> str:
    """Train two seeds in one vectorized update; they must not give the same weights."""
    run = env.work / f"seeds-{execution}"
    options = ("--seeds", "1-2", "--lanes", "on", "--execution", execution, "--run-dir", str(run))
    env.hotloop("train", *TRAININGS["PPO"].split(), *options)
    for seed in (1, 2):
        _check_metrics(run / f"seed_{seed}", 2048)
    if _weights(run / "seed_1") == _weights(run / "seed_2"):
        raise CheckFailed("both seeds have the same weights")
    return ""


def check_envpool(env: Environment) -> str:
    """Train in EnvPool's environments."""
    run = env.work / "envpool"
    options = ("--total-timesteps", "2048", "--execution", "eager", "--run-dir", str(run))
    env.hotloop("train", "ppo", "--env-id", "envpool:CartPole-v1", *options)
    _check_metrics(run, 2048)
    return ""


# Parts of a stack that each profile must have.
STACKS = {
    "plain": ("main;", "square_sum"),
    "processes": ("worker-", "square_sum"),  # one child may get both tasks
    "threads": (";thread ", "square_sum"),
}
_NAMES = {"LSTM": "PPO with an LSTM", "compile": "compiled"}
CHECKS: dict[str, Check] = {
    "wheel": Check("the wheel installs, its extensions import", check_wheel),
    **{
        f"profile {name}": Check(
            f"`hotloop profile`: {label}", partial(check_profile, name, STACKS[name])
        )
        for name, label in (
            ("plain", "a script"),
            ("processes", "multiprocessing"),
            ("threads", "threads"),
        )
    },
    **{
        f"{name} {execution}": Check(
            f"{_NAMES.get(name, name)}, {_NAMES.get(execution, execution)}",
            partial(check_training, name, execution),
            "train",
        )
        for name in TRAININGS
        for execution in ("eager", "compile")
    },
    "workers": Check("worker processes: PPO, APPO", check_workers, "train"),
    "resume": Check("resume after SIGKILL, with the same weights", check_resume, "train"),
    "policy": Check("save and load a policy", check_policy, "train"),
    "export": Check("export to NumPy and ONNX", check_export, "export"),
    **{
        f"seeds {execution}": Check(
            f"two vectorized seeds, {_NAMES.get(execution, execution)}",
            partial(check_seeds, execution),
            "train",
        )
        for execution in ("eager", "compile")
    },
    "envpool": Check("EnvPool", check_envpool, "atari"),
}
