"""Duration of `hotloop report` for a run of 10,000,000 steps.

    python -m bench report
    python -m bench report --quick

The run is synthetic: `config.json`, a recording with the learner's spans, and a `metrics.jsonl`
like that of PPO on CartPole with 8 environments × 128 steps per iteration, evaluations, and about
50,000 or 500,000 episodes. The time is that of a whole process, for the report in the terminal and
for the report with a page.

`report.json`: `runs`, by name: `episodes`, `file_mb`, `page_mb`, `text_s` and `page_s` (figures).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench import storage
from bench.markdown import format_figure, table
from bench.measuring import spread
from hotloop import span, timing

STEPS, STEPS_OF_ITERATION = 10_000_000, 8 * 128
# Mean length of an episode, by name of the run.
RUNS = {"50,000 episodes": 200.0, "500,000 episodes": 20.0}


def make_run(path: Path, *, steps: int, mean_length: float, seed: int = 0) -> int:
    """Write a run; return its number of episodes.

    Args:
        path: directory of the run, which must not exist.
        steps: number of steps.
        mean_length: mean length of an episode.
        seed: seed of the random numbers.
    """
    rng = np.random.default_rng(seed)
    path.mkdir(parents=True)
    config = {"env_id": "CartPole-v1", "seed": 1, "total_timesteps": steps, "num_envs": 8}
    content = {
        "algorithm": "ppo",
        "env_id": "CartPole-v1",
        "config": {**config, "learning_rate": "linear(0.001, 0)", "gamma": 0.99},
        "versions": {"hotloop": "0", "python": "3"},
        "defaults": {"total_timesteps": 200_000},
        "started_at": "2026-01-31T12:00:00+0000",
    }
    (path / "config.json").write_text(json.dumps(content))
    num_episodes, fraction = 0, 0.0
    with open(path / "metrics.jsonl", "w", encoding="utf-8") as file:
        for k in range(1, steps // STEPS_OF_ITERATION + 1):
            share = k * STEPS_OF_ITERATION / steps
            fraction += STEPS_OF_ITERATION / mean_length
            count, fraction = int(fraction), fraction % 1.0
            lengths = rng.gamma(4.0, mean_length / 4.0, count).clip(8, 500).astype(int).tolist()
            num_episodes += count
            line: dict[str, Any] = {
                "iteration": k,
                "timesteps": k * STEPS_OF_ITERATION,
                "elapsed_s": round(0.03 * k, 6),
                "episode_returns": [float(x) for x in lengths],
                "episode_lengths": lengths,
            }
            noise = rng.normal(0.0, 1.0, 8)
            line |= {
                "policy_loss": -0.01 * noise[0],
                "value_loss": 100.0 * float(np.exp(-3 * share + 0.3 * noise[1])),
                "entropy": 0.69 * (1 - 0.5 * share) + 0.01 * noise[2],
                "approx_kl": abs(0.005 * noise[3]),
                "clip_fraction": min(1.0, abs(0.05 * noise[4])),
                "grad_norm": 30.0 * float(np.exp(0.5 * noise[5])),
                "num_updates": 40.0,
                "learning_rate": 1e-3 * (1 - share),
                "explained_variance": 1 - float(np.exp(-3 * share)) + 0.02 * noise[6],
                "episode_info": {"is_success": [float(x >= 195) for x in lengths]},
            }
            if k % 98 == 0:
                returns = rng.uniform(100, 500, 10).round().tolist()
                line["evaluation"] = {
                    "timesteps": k * STEPS_OF_ITERATION,
                    "returns": returns,
                    "lengths": [int(x) for x in returns],
                    "is_best": False,
                    "mean_return": float(np.mean(returns)),
                    "std_return": float(np.std(returns)),
                }
            file.write(json.dumps(line) + "\n")
    _record(path / "timing", steps // STEPS_OF_ITERATION)
    return num_episodes


def _record(directory: Path, num_iterations: int) -> None:
    """Write a recording of a learner with empty spans."""
    timing.start(directory, component="learner")
    for _ in range(num_iterations):
        with span("collect"):
            for _ in range(16):
                with span("env_step"):
                    pass
        with span("update"):
            for _ in range(40):
                with span("minibatch"):
                    pass
    timing.stop()


def _timed(*options: str) -> float:
    start_s = time.perf_counter()
    command = [sys.executable, "-m", "hotloop", "report", *options]
    subprocess.run(command, check=True, capture_output=True, cwd=storage.ROOT)
    return time.perf_counter() - start_s


def report_table() -> str:
    """Return a table of the duration of reports."""
    rows = [["run of 10,000,000 steps with", "terminal, s", "with page, s", "page, MB"]]
    for name, run in storage.load("report")["runs"].items():
        rows.append(
            [
                name,
                format_figure(run["text_s"], 1),
                format_figure(run["page_s"], 1),
                f"{run['page_mb']:.2f}",
            ]
        )
    return table(*rows)


def main() -> int:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(
        prog="python -m bench report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="a shorter run, without storing")
    options = parser.parse_args()
    steps = STEPS // 100 if options.quick else STEPS
    runs: dict[str, Any] = {}
    for name, mean_length in RUNS.items():
        with tempfile.TemporaryDirectory(prefix="bench-report-") as folder:
            run, page = Path(folder) / "run", Path(folder) / "page.html"
            episodes = make_run(run, steps=steps, mean_length=mean_length)
            text_s = [_timed(str(run)) for _ in range(options.repeats)]
            page_s = [_timed(str(run), "--html", str(page)) for _ in range(options.repeats)]
            runs[name] = {
                "episodes": episodes,
                "file_mb": round((run / "metrics.jsonl").stat().st_size / 1e6, 2),
                "page_mb": round(page.stat().st_size / 1e6, 2),
                "text_s": spread(text_s),
                "page_s": spread(page_s),
            }
            print(f"{name}: {runs[name]}", flush=True)
    if not options.quick:
        storage.save("report", {"steps": STEPS, "runs": runs})
        print(report_table())
    return 0


if __name__ == "__main__":
    sys.exit(main())
