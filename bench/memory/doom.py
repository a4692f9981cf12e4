"""Recurrent PPO on ViZDoom's basic scenario, compared with Sample Factory.

    python -m bench memory --part doom --sample-factory PATH/TO/python [--rounds 3]

Sample Factory 2.1.1 needs a separate environment (gymnasium < 1, numpy < 2):

    python3.11 -m venv sf
    sf/bin/pip install sample-factory==2.1.1 'gymnasium<1' 'numpy<2' vizdoom opencv-python-headless

Both use two workers of eight games at 128×72 with four frames per step, Sample Factory's
convolutions for Doom, a linear layer of 512, an LSTM of 128, 32 steps per game, one pass with one
batch of 512, and Adam with 1e-4. Sample Factory runs synchronously in one process (serial) and in
its usual asynchronous mode with a policy worker. Neither library normalizes inputs. hotloop's
workers act by themselves, or one process acts for them (central). Frames per second are those of
the loop as each library reports them, and those from prompt to end. The share of busy cores is
measured during the loop.
"""

from __future__ import annotations

import importlib
import json
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from bench import storage
from bench.markdown import format_figure, table
from bench.measuring import spread

FRAMES = 80_000
SKIP = 4
_COMMON = (
    "--env=doom_basic --device=cpu --num_workers=2 --num_envs_per_worker=8 --use_rnn=True "
    "--rnn_type=lstm --rnn_size=128 --rollout=32 --recurrence=32 --batch_size=512 --num_epochs=1 "
    "--normalize_input=False --res_w=128 --res_h=72 --experiment=bench --restart_behavior=overwrite"
)
_SERIAL = "--serial_mode=True --async_rl=False --worker_num_splits=1"
_ASYNCHRONOUS = "--serial_mode=False --async_rl=True --worker_num_splits=2"
PEERS = {
    "Sample Factory, serial": _SERIAL,
    "Sample Factory, asynchronous": _ASYNCHRONOUS,
}
OURS: dict[str, dict[str, Any]] = {
    "hotloop": {},
    "hotloop, overlapped": {"overlap": True},
    "hotloop, central inference": {"inference": "central"},
    "hotloop, APPO, `lag:1`": {"algorithm": "appo", "schedule": "lag:1"},
    # Several learner threads would wait for each other while workers occupy the cores.
    "hotloop, APPO, `async`": {"algorithm": "appo", "schedule": "async", "torch_threads": 1},
}


def run_hotloop(name: str) -> dict[str, float]:
    """Train once with hotloop."""
    options = dict(OURS[name])
    algorithm = importlib.import_module(f"hotloop.algorithms.{options.pop('algorithm', 'ppo')}")
    with tempfile.TemporaryDirectory() as folder:
        config = algorithm.Config(
            env_id="VizdoomBasic-v1",
            env_kwargs={"game_variables": False},
            workers=2,
            num_envs=16,
            num_steps=32,
            num_minibatches=1,
            update_epochs=1,
            learning_rate=1e-4,
            network="vizdoom",
            hidden_sizes=(),
            memory="lstm:128",
            normalize_reward=True,
            total_timesteps=FRAMES // SKIP,
            execution="compile",
            runs_dir=folder,
            **{"torch_threads": 2, **options},
        )
        result = algorithm.train(config, progress=False)
    return {"frames": result.timesteps * SKIP, "loop_s": result.elapsed_s - result.compile_s}


def run_peer(name: str, python: Path) -> dict[str, float]:
    """Train once with Sample Factory."""
    with tempfile.TemporaryDirectory() as folder:
        command = [python, "-m", "sf_examples.vizdoom.train_vizdoom", *_COMMON.split()]
        command += [*PEERS[name].split(), f"--train_for_env_steps={FRAMES}"]
        command += [f"--train_dir={folder}"]
        completed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
    matches = re.findall(
        r"Collected \{0: (\d+)\}, FPS: ([\d.]+)", completed.stdout + completed.stderr
    )
    frames, rate = map(float, matches[-1])
    return {"frames": frames, "loop_s": frames / rate}


class CoreUsage:
    """A monitor of the machine's busy cores. It counts all processes, so run nothing else."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, float]] = []  # core-seconds at work, and in all
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> CoreUsage:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._has_ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._has_ended.wait(0.2):
            fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
            user, nice, system, idle, io_wait, irq, soft_irq, steal = map(float, fields)
            work = user + nice + system + irq + soft_irq
            self._samples.append((work, work + idle + io_wait + steal))

    def share(self) -> float:
        """Return the busy share between 50 % and 90 % of the time, without start-up and end."""
        first, last = (self._samples[int(part * len(self._samples))] for part in (0.5, 0.9))
        return (last[0] - first[0]) / (last[1] - first[1])


def measure(rounds: int, python: Path) -> None:
    """Run all ways in turn, print and store."""
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in (*OURS, *PEERS)}
    for _ in range(rounds):
        for name in runs:
            start_s = time.perf_counter()
            with CoreUsage() as busy:
                if name in PEERS:
                    run = run_peer(name, python)
                else:
                    command = [sys.executable, "-m", "bench.memory.doom", name]
                    completed = subprocess.run(
                        command, check=True, stdout=subprocess.PIPE, text=True
                    )
                    run = json.loads(completed.stdout.splitlines()[-1])
            run |= {"whole_s": time.perf_counter() - start_s, "busy": busy.share()}
            runs[name].append(run)
            rate = run["frames"] / run["loop_s"]
            print(f"{name}: {rate:,.0f} frames/s, {run['busy']:.0%} busy", flush=True)
            storage.save("memory_doom", {"runs": runs, "frames": FRAMES}, peers=("vizdoom",))
    print(doom_table())


def doom_table() -> str:
    """Return a table of frames per second and the ratio to Sample Factory's serial mode."""
    runs = {x: entries for x, entries in storage.load("memory_doom")["runs"].items() if entries}
    keys = ("loop_s", "whole_s")
    rates = {
        name: [[run["frames"] / run[key] for run in entries] for key in keys]
        for name, entries in runs.items()
    }
    peer = [statistics.median(values) for values in rates["Sample Factory, serial"]]
    rows = [["", "frames/s in the loop", "over serial", "frames/s from prompt to end"]]
    rows[0] += ["over serial", "busy cores"]
    for name, each in rates.items():
        row = [name]
        for rate, serial_rate in zip(each, peer, strict=True):
            row += [
                format_figure(spread(rate), 1.0),
                f"{statistics.median(rate) / serial_rate:.2f}",
            ]
        busy = [run["busy"] for run in runs[name] if "busy" in run]
        rows.append([*row, f"{statistics.median(busy):.0%}" if busy else "–"])
    return table(*rows)


if __name__ == "__main__":
    print(json.dumps(run_hotloop(sys.argv[1])))
