"""Share of sampling in a SAC training with a full buffer, from hotloop's timing tree.

    python -m bench replay-share

The training is HalfCheetah-v5 with 256×256 networks, batches of 256 and one update per step. The
buffer starts with 1,000,000 synthetic transitions (episodes of 1,000 steps, returns from 0 to
5,000). Shares are computed from the timing tree between two reports after compilation: time in the
span over elapsed time. `--replays` are measured in turn, each run in its own process.

`sample` draws numbers, `gather` copies their rows, `store` adds the new transition and its weight.
In the post (see docs/replay-speed.md) drawing batches in proportion to returns took 65 % of a
training, and uniform drawing 16 %, with other networks on another machine.

`replay_share_sac.json`: `ways`, by replay: `about`, `ms` per step of each part and of the whole
`step`, `share` of each part and of `drawing` (sample and gather); `published`: the post's shares.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from typing import Any
from unittest import mock

import numpy as np

from bench import storage
from bench.measuring import spread

PUBLISHED = {"proportional": 0.65, "uniform": 0.16}
ABOUTS = {
    "proportional": "in proportion to the episode's return, without replacement",
    "uniform": "uniform",
    "prioritized": "by TD error",
}
# Path of each part of a step in the timing tree.
PARTS = {
    "sample": ("sample",),
    "gather": ("gather",),
    "store": ("store",),
    "priorities": ("update_priorities",),
    "update": ("update",),
    "act": ("collect", "act"),
    "env_step": ("collect", "env_step"),
}
EPISODE = 1_000  # steps of a synthetic episode
EPISODES_AT_ONCE = 50
LEARNING_STARTS = 100
REPORT_INTERVAL = 250


def fill(buffer: Any, entries: int) -> None:
    """Fill a buffer with synthetic episodes of HalfCheetah's shapes."""
    rng = np.random.default_rng(0)
    num_missing = -(-entries // EPISODE)
    while num_missing:
        count = min(num_missing, EPISODES_AT_ONCE)
        num_missing -= count
        obs = rng.standard_normal((count, EPISODE + 1, 17))
        # A separate mean reward per episode spreads the returns.
        reward = rng.uniform(0.0, 5.0, (count, 1)) + rng.standard_normal((count, EPISODE))
        truncated = np.zeros((count, EPISODE), bool)
        truncated[:, -1] = True
        buffer.extend(
            obs=obs[:, :-1].reshape(-1, 17),
            action=rng.uniform(-1.0, 1.0, (count * EPISODE, 6)).astype(np.float32),
            reward=reward.reshape(-1).astype(np.float32),
            next_obs=obs[:, 1:].reshape(-1, 17),
            terminated=np.zeros(count * EPISODE, bool),
            truncated=truncated.reshape(-1),
        )


def measure(replay: str, options: argparse.Namespace) -> dict[str, float]:
    """Run once in this process; return the seconds per step of each part and of `step`."""
    from hotloop import timing
    from hotloop.algorithms import sac
    from hotloop.training import replay_sources

    class Filled(replay_sources.Replay):
        """A replay that starts with a full buffer."""

        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            fill(self.buffer, options.entries)

    def seconds_in_parts() -> dict[str, float]:
        seconds = dict.fromkeys(PARTS, 0.0)
        for path, node in timing.current().tree().walk():
            for part, its_path in PARTS.items():
                if path == its_path:
                    seconds[part] += node.total_ns / 1e9
        return seconds

    marks: list[tuple[int, float, dict[str, float]]] = []

    def on_report(report: Any) -> bool:
        # The clock starts after reading the tree and stops before it.
        now = time.perf_counter()
        if report.timesteps == report.total_timesteps:
            marks.append((report.timesteps, now, seconds_in_parts()))
        elif report.timesteps > LEARNING_STARTS + options.warm_up and not marks:
            before = seconds_in_parts()
            marks.append((report.timesteps, time.perf_counter(), before))
        return False

    total = LEARNING_STARTS + options.warm_up + options.updates + REPORT_INTERVAL
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(replay_sources, "Replay", Filled),
    ):
        sac.train(
            sac.Config(
                env_id="HalfCheetah-v5",
                replay=replay,  # pyright: ignore[reportArgumentType]
                buffer_size=max(options.entries, 1_000),
                learning_starts=LEARNING_STARTS,
                total_timesteps=total,
                report_interval=REPORT_INTERVAL,
                execution=options.execution,
                torch_threads=options.threads,
                policy_frequency=1,
                runs_dir=folder,
            ),
            on_report=on_report,
            progress=False,
        )
    (first, start_s, before), (last, end_s, after) = marks
    steps = last - first
    figures = {part: (after[part] - before[part]) / steps for part in PARTS}
    return {**figures, "step": (end_s - start_s) / steps}


def measure_in_process(replay: str, options: argparse.Namespace) -> dict[str, float]:
    """Run once in a new process."""
    command = [
        *(sys.executable, "-m", "bench", "replay-share", "--worker", replay),
        *("--entries", str(options.entries), "--updates", str(options.updates)),
        *("--warm-up", str(options.warm_up), "--threads", str(options.threads)),
        *("--execution", options.execution),
    ]
    completed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(completed.stdout.splitlines()[-1])


def main() -> int:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(
        prog="python -m bench replay-share",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--replays", nargs="+", choices=list(ABOUTS), default=["proportional", "uniform"]
    )
    parser.add_argument(
        "--entries", type=int, default=1_000_000, help="initial entries in the buffer"
    )
    parser.add_argument("--updates", type=int, default=2_000, help="measured updates")
    parser.add_argument("--warm-up", type=int, default=300, help="updates before the measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--execution", default="compile", choices=["auto", "eager", "compile"])
    parser.add_argument("--worker", choices=list(ABOUTS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(measure(options.worker, options)))
        return 0

    runs: dict[str, list[dict[str, float]]] = {replay: [] for replay in options.replays}
    for number in range(options.rounds):
        # The order is reversed every other round.
        for replay in options.replays[:: 1 if number % 2 == 0 else -1]:
            figures = measure_in_process(replay, options)
            runs[replay].append(figures)
            drawing = (figures["sample"] + figures["gather"]) / figures["step"]
            print(
                f"{replay:12} {figures['step'] * 1e3:.2f} ms per step, drawing {drawing:.2%}",
                flush=True,
            )
    ways: dict[str, Any] = {}
    for replay, rounds in runs.items():
        ms = {name: spread([run[name] * 1e3 for run in rounds]) for name in (*PARTS, "step")}
        share = {name: spread([run[name] / run["step"] for run in rounds]) for name in PARTS}
        drawing = [(run["sample"] + run["gather"]) / run["step"] for run in rounds]
        share["drawing"] = spread(drawing)
        ways[replay] = {"about": ABOUTS[replay], "ms": ms, "share": share}
    path = storage.save(
        "replay_share_sac",
        {
            "command": " ".join(["python -m bench replay-share", *sys.argv[1:]]),
            "entries": options.entries,
            "updates": options.updates,
            "rounds": options.rounds,
            "settings": {
                "env_id": "HalfCheetah-v5",
                "batch_size": 256,
                "hidden_sizes": [256, 256],
                "policy_frequency": 1,
                "threads": options.threads,
                "execution": options.execution,
            },
            "ways": ways,
            "published": PUBLISHED,
        },
    )
    for replay, way in ways.items():
        drawing = way["share"]["drawing"]
        published_text = f" (the post's: {PUBLISHED[replay]:.0%})" if replay in PUBLISHED else ""
        print(
            f"{replay:12} {way['ms']['step']['median']:.2f} ms per step; sample "
            f"{way['ms']['sample']['median']:.3f}, gather {way['ms']['gather']['median']:.3f}: "
            f"{drawing['median']:.2%} ({drawing['min']:.2%}–{drawing['max']:.2%}){published_text}"
        )
    print(f"stored: {path.relative_to(storage.RESULTS.parent.parent)}")
    return 0
