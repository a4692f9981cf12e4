"""Speed of trainings compared with an earlier checkout.

    git worktree add ../before REVISION
    python -m bench before --checkout ../before

Runs alternate, each in its own process. The figures are transitions per second of the loop without
compilation, and milliseconds of a compiled update: medians, spread and the ratio to before.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench import storage

# Algorithm and options, by name.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo CartPole": ("ppo", {"total_timesteps": 102_400, "learning_rate": 3e-4}),
    "ppo CartPole, workers": (
        "ppo",
        {"total_timesteps": 102_400, "learning_rate": 3e-4, "workers": 1, "overlap": True},
    ),
    "ppo HalfCheetah": (
        "ppo",
        {
            "env_id": "HalfCheetah-v5",
            "total_timesteps": 20_480,
            "num_envs": 1,
            "num_steps": 2048,
            "num_minibatches": 32,
            "learning_rate": 3e-4,
        },
    ),
    "sac HalfCheetah": (
        "sac",
        {
            "env_id": "HalfCheetah-v5",
            "total_timesteps": 4_000,
            "learning_starts": 1_000,
            "policy_frequency": 1,
        },
    ),
    "td3 HalfCheetah": (
        "td3",
        {"env_id": "HalfCheetah-v5", "total_timesteps": 4_000, "learning_starts": 1_000},
    ),
    "dqn CartPole": ("dqn", {"total_timesteps": 60_000, "learning_starts": 5_000}),
    "ppo CartPole, eager": (
        "ppo",
        {"total_timesteps": 20_480, "learning_rate": 3e-4, "execution": "eager"},
    ),
}


def train(case: str) -> dict[str, float]:
    """Train once with the imported hotloop."""
    name, options = CASES[case]
    algorithm = importlib.import_module(f"hotloop.algorithms.{name}")
    options = {
        "execution": "compile",
        "torch_threads": 1 if name in ("ppo", "dqn") else 2,
        **options,
    }
    if any(field.name == "anneal_learning_rate" for field in dataclasses.fields(algorithm.Config)):
        options["anneal_learning_rate"] = False
    with tempfile.TemporaryDirectory() as folder:
        result = algorithm.train(algorithm.Config(runs_dir=folder, **options), progress=False)
    updates = re.findall(r"an update (?:took )?([\d.]+) ms", result.execution)
    return {
        "steps_per_s": result.timesteps / (result.elapsed_s - result.compile_s),
        "update_ms": sum(map(float, updates)),
    }


def run(case: str, checkout: Path) -> dict[str, float]:
    """Train once with a checkout's hotloop in its own process."""
    code = "import json, sys; from bench.train.before import train; "
    code += "print(json.dumps(train(sys.argv[1])))"
    paths = os.pathsep.join([str(checkout / "src"), str(storage.ROOT)])
    completed = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, case],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(completed.stdout.splitlines()[-1])


def main() -> int:
    """Train all cases, before and after in turn."""
    parser = argparse.ArgumentParser(prog="python -m bench before", description=__doc__)
    parser.add_argument(
        "--checkout", type=Path, required=True, help="folder of the earlier checkout"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="+", default=list(CASES), metavar="CASE")
    options = parser.parse_args()
    cases: dict[str, Any] = {}
    checkouts = {"before": options.checkout.resolve(), "after": storage.ROOT}
    print(f"{'':24}{'steps/s':>10}{'before':>10}{'ratio':>7}{'update, ms':>12}{'before':>8}")
    for case in options.only:
        runs: dict[str, list[dict[str, float]]] = {"after": [], "before": []}
        for repeat in range(options.repeats + 1):
            for version, checkout in checkouts.items():
                result = run(case, checkout)
                if repeat:  # the first run fills the compiler's cache
                    runs[version].append(result)
        median = {
            version: {
                key: statistics.median(figures[key] for figures in version_runs)
                for key in version_runs[0]
            }
            for version, version_runs in runs.items()
        }
        pairs = zip(runs["after"], runs["before"], strict=True)
        ratios = [after["steps_per_s"] / before["steps_per_s"] for after, before in pairs]
        cases[case] = {"runs": runs, "ratio": statistics.median(ratios), "ratios": ratios}
        after, before = median["after"], median["before"]
        print(
            f"{case:24}{after['steps_per_s']:10,.0f}{before['steps_per_s']:10,.0f}"
            f"{cases[case]['ratio']:7.2f}{after['update_ms']:12.2f}{before['update_ms']:8.2f}"
            f"   {min(ratios):.2f}–{max(ratios):.2f}",
            flush=True,
        )
    if set(options.only) == set(CASES):
        print(storage.save("before", {"cases": cases}))
    return 0
