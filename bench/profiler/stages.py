"""Shares of the stages by the profile and by manual timers, in the same runs.

The scripts in staged/ are single-file loops in CleanRL's style, and programs with
Stable-Baselines3.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from bench import storage
from hotloop.base.children import python_command
from hotloop.profiler.session.reading import read
from hotloop.profiler.session.stages import TimeSum, stage_times

STAGES = ("env", "act", "replay", "update")
# Allowed difference between two shares of the total time.
CLOSE = 0.03
SCRIPTS = Path(__file__).parent / "staged"


class StagedScript(NamedTuple):
    """A script with manual timers.

    Attributes:
        script: stem of its file.
        kind: first argument.
        length: second argument, for a duration of ten seconds.
    """

    script: str
    kind: str
    length: int


PROGRAMS = {
    "PPO, one file": StagedScript("ppo", "CartPole-v1", 60),
    "PPO, one file, continuous": StagedScript("ppo", "Pendulum-v1", 50),
    "DQN, one file": StagedScript("dqn", "CartPole-v1", 15_000),
    "SAC, one file": StagedScript("sac", "Pendulum-v1", 1_600),
    "Stable-Baselines3 PPO": StagedScript("sb3", "ppo", 16_000),
    "Stable-Baselines3 PPO, processes": StagedScript("sb3", "ppo-processes", 12_000),
    "Stable-Baselines3 SAC": StagedScript("sb3", "sac", 1_200),
    "Stable-Baselines3 DQN": StagedScript("sb3", "dqn", 20_000),
}


def shares(program: StagedScript, seconds: float) -> dict[str, tuple[float, float]]:
    """Return the shares by manual timers and by the profile, by stage."""
    with tempfile.TemporaryDirectory(prefix="bench-stages-") as folder:
        profile, times = Path(folder) / "profile", Path(folder) / "times.json"
        settings = {"directory": str(profile), "interval_s": 0.01, "hooks": True}
        command = python_command("hotloop.profiler.collect.script", json.dumps(settings))
        command += [str(SCRIPTS / f"{program.script}.py"), program.kind]
        command += [str(max(1, round(program.length * seconds / 10))), str(times)]
        env = os.environ | {"PYTHONPATH": str(storage.ROOT)}
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=env)
        spent = json.loads(times.read_text(encoding="utf-8"))
        profiled = stage_times(read(profile).main).by_stage
    total_s = spent["whole"]
    return {
        stage: (
            spent.get(stage, 0.0) / total_s,
            profiled.get(stage, TimeSum()).elapsed_ns / 1e9 / total_s,
        )
        for stage in STAGES
    }


def measure(seconds: float, rounds: int) -> None:
    """Measure all scripts; print and store medians of shares and of their differences."""
    programs: dict[str, Any] = {}
    for label, program in PROGRAMS.items():
        runs = [shares(program, seconds) for _ in range(rounds)]
        programs[label] = {
            stage: {
                "by_hand": round(statistics.median(run[stage][0] for run in runs), 4),
                "by_profile": round(statistics.median(run[stage][1] for run in runs), 4),
                "off": round(statistics.median(run[stage][1] - run[stage][0] for run in runs), 4),
            }
            for stage in STAGES
        }
        texts = (
            f"{stage} {figures['by_hand']:.1%} {figures['off'] * 100:+.1f}"
            for stage, figures in programs[label].items()
        )
        print(f"  {label}: {', '.join(texts)}", flush=True)
    storage.save("profiler_stages", {"rounds": rounds, "programs": programs})
