"""Shares of the stages, by the profile and by timers placed by hand, of the same runs.

The scripts are those of staged/: loops in one piece, as CleanRL writes them, and
Stable-Baselines3's users'.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from bench import storage
from hotloop.profiler.session.reading import read
from hotloop.profiler.session.stages import Share, stages

STAGES = ("env", "act", "replay", "update")
# How far apart two shares may be, of the whole.
CLOSE = 0.03
SCRIPTS = Path(__file__).parent / "staged"


class Staged(NamedTuple):
    """A script with timers.

    Attributes:
        script: its file's stem.
        kind: its first argument.
        length: its second, for ten seconds.
    """

    script: str
    kind: str
    length: int


PROGRAMS = {
    "PPO, one file": Staged("ppo", "CartPole-v1", 60),
    "PPO, one file, continuous": Staged("ppo", "Pendulum-v1", 50),
    "DQN, one file": Staged("dqn", "CartPole-v1", 15_000),
    "SAC, one file": Staged("sac", "Pendulum-v1", 1_600),
    "Stable-Baselines3 PPO": Staged("sb3", "ppo", 16_000),
    "Stable-Baselines3 PPO, processes": Staged("sb3", "ppo-processes", 12_000),
    "Stable-Baselines3 SAC": Staged("sb3", "sac", 1_200),
    "Stable-Baselines3 DQN": Staged("sb3", "dqn", 20_000),
}


def shares(program: Staged, seconds: float) -> dict[str, tuple[float, float]]:
    """Shares of the time since the timers began: by hand, by the profile."""
    with tempfile.TemporaryDirectory(prefix="bench-stages-") as folder:
        profile, times = Path(folder) / "profile", Path(folder) / "times.json"
        settings = {"directory": str(profile), "interval_s": 0.01, "hooks": True}
        command = [sys.executable, "-m", "hotloop.profiler.collect.script", json.dumps(settings)]
        command += [str(SCRIPTS / f"{program.script}.py"), program.kind]
        command += [str(max(1, round(program.length * seconds / 10))), str(times)]
        env = os.environ | {"PYTHONPATH": str(storage.ROOT)}
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=env)
        spent = json.loads(times.read_text(encoding="utf-8"))
        found = stages(read(profile).main).by_stage
    whole = spent["whole"]
    return {
        stage: (
            spent.get(stage, 0.0) / whole,
            found.get(stage, Share()).elapsed_ns / 1e9 / whole,
        )
        for stage in STAGES
    }


def measure(seconds: float, rounds: int) -> None:
    """Measure all, print, store: medians over rounds, and of each stage the largest difference."""
    programs: dict[str, Any] = {}
    for about, program in PROGRAMS.items():
        ran = [shares(program, seconds) for _ in range(rounds)]
        programs[about] = {
            stage: {
                "by_hand": round(statistics.median(one[stage][0] for one in ran), 4),
                "by_profile": round(statistics.median(one[stage][1] for one in ran), 4),
                "off": round(statistics.median(one[stage][1] - one[stage][0] for one in ran), 4),
            }
            for stage in STAGES
        }
        told = (
            f"{stage} {one['by_hand']:.1%} {one['off'] * 100:+.1f}"
            for stage, one in programs[about].items()
        )
        print(f"  {about}: {', '.join(told)}", flush=True)
    storage.save("profiler_stages", {"rounds": rounds, "programs": programs})
