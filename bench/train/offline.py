"""Learning from a data set: behaviour cloning, TD3+BC, and SAC with and without recorded steps.

    python -m bench offline

SAC is trained on Pendulum-v1 until an evaluation exceeds −600, half of the way. Then it plays 25
episodes with sampled actions. The data set goes to a temporary directory. Offline trainings make
5,000 updates, SAC collects 3,000 steps.
Returns are means of 10 evaluation episodes with the most probable actions.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

from bench import storage
from bench.markdown import table

ENV_ID, DATASET = "Pendulum-v1", "pendulum/medium-v0"
SMALL: dict[str, Any] = {"env_id": ENV_ID, "hidden_sizes": (64, 64), "torch_threads": 1}
OFFLINE = {"replay_from": f"minari:{DATASET}", "total_timesteps": 5_000, "eval_interval": 500}
ONLINE: dict[str, Any] = {"total_timesteps": 3_000, "learning_starts": 256, "eval_interval": 300}
MIXED = {**ONLINE, "replay_from": f"minari:{DATASET}"}
# Label → algorithm and options.
CONTENDERS: dict[str, tuple[str, dict[str, Any]]] = {
    "behaviour cloning (`td3_bc --q-weight 0`)": ("td3_bc", {**OFFLINE, "q_weight": 0.0}),
    "TD3+BC (`td3_bc`)": ("td3_bc", OFFLINE),
    "SAC alone": ("sac", ONLINE),
    "SAC with `--replay-from`": ("sac", MIXED),
}
MEDIUM = {**ONLINE, "total_timesteps": 20_000, "report_interval": 300}
EPISODES, MEDIUM_RETURN = 25, -600.0


def train(
    algorithm: str,
    options: dict[str, Any],
    run_dir: Path,
    seed: int,
    *,
    until: float = math.inf,
) -> list[list[float]]:
    """Train until a mean return, and return the evaluations: timesteps and mean return."""
    from hotloop.algorithms import find

    declaration = find(algorithm)
    config = declaration.config(**{**SMALL, **options}, seed=seed, run_dir=str(run_dir))
    curve: list[list[float]] = []

    def on_report(report: Any) -> bool:
        if report.evaluation is not None:
            curve.append([report.timesteps, report.evaluation.mean_return])
        return bool(curve) and curve[-1][1] > until

    declaration.train(config, on_report=on_report, progress=False)
    return curve


def offline_table() -> str:
    """Return a table of returns, early, halfway and at the end."""
    stored = storage.load("offline")
    data = stored["data"]
    rows = [["", "updates or steps", "at a tenth", "halfway", "at the end", "over seeds"]]
    data_label = f"the data: {data['episodes']} episodes of a half-trained SAC"
    rows.append([data_label, "–", "–", "–", f"{data['mean_return']:.0f}", "–"])
    for label, curves in stored["curves"].items():
        total = curves[0][-1][0]
        cells = [label, f"{total:,}"]
        for share in (0.1, 0.5, 1.0):
            values = [
                next(value for step, value in curve if step >= share * total) for curve in curves
            ]
            cells.append(f"{statistics.mean(values):.0f}")
        ends = [curve[-1][1] for curve in curves]
        rows.append([*cells, f"{min(ends):.0f} … {max(ends):.0f}"])
    return table(*rows)


def main() -> int:
    """Record the data, train, and store the curves."""
    parser = argparse.ArgumentParser(prog="python -m bench offline", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()

    from hotloop.training.recording import record_episodes

    with tempfile.TemporaryDirectory(prefix="hotloop-") as folder:
        os.environ["MINARI_DATASETS_PATH"] = folder
        medium = Path(folder) / "runs" / "medium"
        train("sac", MEDIUM, medium, seed=0, until=MEDIUM_RETURN)
        data = record_episodes(medium, DATASET, episodes=EPISODES, is_sampled=True, seed=0)
        del data["path"]
        print(data, flush=True)
        curves: dict[str, list[Any]] = {}
        for number, (label, (algorithm, changed)) in enumerate(CONTENDERS.items()):
            runs = [
                train(algorithm, changed, medium.with_name(f"{number}-{seed}"), seed)
                for seed in range(1, options.seeds + 1)
            ]
            curves[label] = runs
            print(label, [round(run[-1][1]) for run in runs], flush=True)
    storage.save("offline", {"data": data, "curves": curves}, peers=("minari",))
    print(offline_table())
    return 0
