"""Correctness and speed of learning on one GPU, in two unattended stages.

    python -m bench accelerate --stage check --out results/check       # 240 s at most
    python -m bench accelerate --stage measure --out results/measure   # 450 s at most
    python -m bench accelerate --collect results/measure               # into bench/results

A stage is a list of jobs in order of importance. Each job has its own process and limit. Jobs that
do not fit before the stage's deadline are skipped, and `--deadline 3600` runs everything. `--out`
receives a line of JSON per job (`results.jsonl`), the logs of failed jobs (`logs.txt`) and a table
(`table.txt`).

`check` compares updates of each algorithm and way of running with eager ones, runs the tests
marked `gpu`, and trains for some seconds.

`measure` first compiles all rows in parallel to fill the caches. Then it measures one training at a
time: algorithms with CleanRL's hyper-parameters and one environment each (Atari: eight), simulators
on the CPU; 16 seeds in one update; environments on the GPU; updates alone and their lower bound.
Without a GPU the stages run eager updates on the CPU. Such figures only show that the stages work.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import storage
from bench.accelerate import tables
from bench.accelerate.rows import MODES, ROWS
from bench.accelerate.runner import Job, Runner, read_lines

DEADLINES_S = {"check": 240.0, "measure": 450.0}
# Small sizes for trying out a stage on the CPU.
CPU_OPTIONS: dict[str, dict[str, Any]] = {
    "ppo-atari": {"num_steps": 16, "update_epochs": 1},
    "ppo": {"num_steps": 256, "num_minibatches": 4},
    **{row: {"learning_starts": 300} for row in ("sac", "td3", "dqn")},
}
NUM_LANES = 16
NUM_COPIES = (4096, 16384, 1024, 256)
# Id and module of environments in JAX. The first that is installed is measured.
JAX_ENVIRONMENTS = (
    ("playground:CheetahRun", "mujoco_playground"),
    ("brax:halfcheetah", "brax"),
    ("gymnax:CartPole-v1", "gymnax"),
)


class Stage:
    """The jobs of both stages.

    Args:
        device: device of the updates.
        seconds: measured time of each training.
    """

    def __init__(self, device: str, seconds: float) -> None:
        self._device, self._seconds = device, seconds
        self._on_gpu = device != "cpu"
        # Eager updates on the CPU avoid compilation.
        self._fastest = "compile+cudagraph" if self._on_gpu else "eager"
        self._modes = MODES if self._on_gpu else ("eager",)
        self._usual = "auto" if self._on_gpu else "eager"
        self._warm_s = 3.0 if self._on_gpu else 0.5

    def check(self) -> Iterator[Job]:
        """Yield the jobs that check correctness."""
        yield self._job("facts", "facts", 60, device=self._device)
        if self._on_gpu:
            yield from self._checks("cudagraph")
        yield from self._check_trainings()
        yield from self._check_tests("gpu and not slow")
        if self._on_gpu:
            yield from self._checks("compile+cudagraph")
        yield from self._checks("eager")
        yield from self._checks("compile")
        yield from self._check_tests("gpu and slow")

    def measure(self) -> Iterator[Job]:
        """Yield the jobs that measure speed."""
        yield self._job("facts", "facts", 60, device=self._device)
        fastest = self._fastest
        jax_name = next((name for name, module in JAX_ENVIRONMENTS if _is_installed(module)), None)
        rows = ("sac", "td3", "ppo", "ppo-atari")
        # In parallel: compile everything once.
        short = {"warm_s": 0.0, "seconds": min(4.0, self._seconds), "windows": False}
        for row in rows:
            yield self._train(f"compile {row}", row, fastest, alone=False, **short)
        yield self._train("compile 16 seeds", "sac", fastest, alone=False, lanes=NUM_LANES, **short)
        for env_id in ("hotloop:CartPole", jax_name):
            if env_id is not None:
                options = self._copies(env_id, NUM_COPIES[0])
                name = f"compile {env_id}"
                yield self._train(name, None, fastest, alone=False, options=options, **short)
        # One at a time, in order of importance.
        for row in rows:
            yield self._row(row, fastest)
            if ROWS[row].algorithm != "ppo":
                yield self._row(row, "overlap")
        place = ("seeds", str(NUM_LANES))
        yield self._train("16 seeds of sac", "sac", fastest, place=place, lanes=NUM_LANES)
        yield self._copies_job("hotloop:CartPole", NUM_COPIES[0])
        if jax_name is not None:
            yield self._copies_job(jax_name, NUM_COPIES[0])
        if self._on_gpu:
            yield self._row("sac", "eager")
        # Jobs for a longer deadline.
        yield self._floor(None)
        for row in ROWS:
            yield self._floor(row)
        for row in ROWS:
            for mode in self._modes:
                if (row, mode) not in {("sac", "eager"), *((row, fastest) for row in rows)}:
                    yield self._row(row, mode)
        for copies in NUM_COPIES[1:]:
            yield self._copies_job("hotloop:CartPole", copies)

    def _check_trainings(self) -> Iterator[Job]:
        short = {"alone": False, "warm_s": 1.0, "seconds": min(6.0, self._seconds)}
        short |= {"windows": False}
        yield self._train("train sac", "sac", self._usual, **short)
        yield self._train("train ppo-atari", "ppo-atari", self._usual, **short)
        options = self._copies("hotloop:CartPole", 1024)
        # A random policy has a mean return of 22; half a million steps on the CPU reach 200.
        reaches = {"reaches": 100.0} if self._on_gpu else {}
        yield self._train(
            "train CartPole on the device", None, self._usual, options=options, **reaches, **short
        )
        yield self._train("train 16 seeds of sac", "sac", self._usual, lanes=NUM_LANES, **short)

    def _check_tests(self, marks: str) -> Iterator[Job]:
        required_marks = ("mark.gpu", "mark.slow") if marks == "gpu and slow" else ("mark.gpu",)
        for path in sorted((storage.ROOT / "tests").rglob("test_*.py")):
            text = path.read_text(encoding="utf-8")
            if all(mark in text for mark in required_marks):
                name = path.relative_to(storage.ROOT).as_posix()
                yield self._job(f"{name} ({marks})", "tests", 100, path=name, marks=marks)

    def _checks(self, mode: str) -> Iterator[Job]:
        # Rows with convolutions take longest and come last.
        for row in sorted(ROWS, key=lambda row: row.startswith("ppo")):
            group = f"{row} {mode}"
            yield self._job(f"check {group}", "check", 110, group=group, device=self._device)

    def _row(self, row: str, mode: str) -> Job:
        """Return the measurement of a row. Mode "overlap" is the fastest mode, overlapped."""
        options = {"overlap": True} if mode == "overlap" and self._on_gpu else {}
        return self._train(
            f"{row} {mode}",
            row,
            self._fastest if mode == "overlap" else mode,
            place=("table", row, "modes", mode),
            options=options,
        )

    def _copies(self, env_id: str, copies: int) -> dict[str, Any]:
        """Return the options of PPO on copies of an environment on the device."""
        copies = copies if self._on_gpu else 64
        return {"env_id": env_id, "num_envs": copies, "num_steps": 32, "update_epochs": 4}

    def _copies_job(self, env_id: str, copies: int) -> Job:
        name = f"{env_id} × {copies:,}"
        options, place = self._copies(env_id, copies), ("copies", name)
        return self._train(name, None, self._fastest, place=place, options=options)

    def _floor(self, row: str | None) -> Job:
        place = ("floor", "device") if row is None else ("floor", "rows", row)
        seconds = 1.0 if self._on_gpu else 0.2
        return self._job(
            f"floor of {row or 'the device'}", "floor", 150, alone=True, place=place,
            row=row, device=self._device, seconds=seconds, modes=self._modes,
        )  # fmt: skip

    def _train(
        self,
        name: str,
        row: str | None,
        mode: str,
        *,
        alone: bool = True,
        place: tuple[str, ...] = (),
        **options_of_job: Any,
    ) -> Job:
        arguments = {"row": row, "mode": mode, "device": self._device}
        arguments |= {"warm_s": self._warm_s, "seconds": self._seconds, **options_of_job}
        if not self._on_gpu:
            options = {**options_of_job.get("options", {}), **CPU_OPTIONS.get(row or "", {})}
            arguments["options"] = options
        # Starting, capturing and compiling from a warm cache take about 15 s.
        limit_s = 100 + arguments["warm_s"] + arguments["seconds"]
        return self._job(name, "train", limit_s, alone=alone, place=place, **arguments)

    def _job(
        self,
        name: str,
        kind: str,
        limit_s: float,
        *,
        alone: bool = False,
        place: tuple[str, ...] = (),
        **arguments: Any,
    ) -> Job:
        text = json.dumps({"kind": kind, **arguments})
        command = [sys.executable, "-W", "ignore", "-m", "bench", "accelerate", "--job", text]
        least_s = 15.0 + self._seconds if alone else 10.0
        # A CPU takes several times as long as a GPU machine.
        return Job(name, command, limit_s * (1 if self._on_gpu else 3), alone, least_s, place)


def _is_installed(module: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(module) is not None


def gpu_name() -> str | None:
    """Return the first GPU's name by nvidia-smi, or None."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        completed = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
        return completed.stdout.splitlines()[0].strip()
    return None


def results_by_place(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of a stage's lines in the form of stored results."""
    stored: dict[str, Any] = {}
    for line in lines:
        figures = line["figures"]
        if line["name"] == "facts" and "device" in figures:
            stored = {"machine": figures["machine"], "device": figures["device"], **stored}
        if line["status"] in ("failed", "timeout"):
            figures = {"missing": line["error"].splitlines()[-1][:200]}
        if line["place"] and (line["status"] != "skipped" or figures):
            *parents, key = line["place"]
            parent_entry = stored
            for parent in parents:
                parent_entry = parent_entry.setdefault(parent, {})
            parent_entry[key] = figures
    return stored


def collect(out: Path) -> Path:
    """Store a folder's results under the name of its GPU, merged with earlier results.

    Raises:
        SystemExit: the folder has no facts of the machine.
    """
    stored = results_by_place(read_lines(out))
    if "device" not in stored:
        raise SystemExit(f"{out} has no facts of the machine: see its table.txt")
    cpu = "cuda" not in stored["device"]
    name = "cpu" if cpu else re.sub(r"[^A-Za-z0-9]+", "-", stored["device"]["name"]).strip("-")
    name = f"accelerate_{name}"
    if (storage.RESULTS / f"{name}.json").is_file():
        stored = _merge(storage.load(name), stored)
    return storage.save(name, stored)


def _merge(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Merge two results; figures of `new` replace those of `old`."""
    merged = dict(old)
    for key, value in new.items():
        nested = isinstance(value, dict) and "steps_per_s" not in value and key != "device"
        merged[key] = _merge(old[key], value) if nested and key in old else value
    return merged


def table(lines: list[dict[str, Any]]) -> str:
    """Return the jobs of a stage as a table for the terminal."""
    rows = []
    for line in lines:
        text = tables.summary(line["figures"]) if line["status"] == "ok" else line["error"]
        text = (text.splitlines() or [""])[-1][:110]
        rows.append(f"{line['status']:8}{line['seconds']:6.1f} s  {line['name']}: {text}")
    statuses = [line["status"] for line in lines]
    counts = ", ".join(f"{statuses.count(status)} {status}" for status in dict.fromkeys(statuses))
    return "\n".join([*rows, "", counts])


def main() -> int:
    """Run a stage, or collect its results; return 1 if a job failed."""
    started = time.monotonic()
    parser = argparse.ArgumentParser(
        prog="python -m bench accelerate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--stage", choices=list(DEADLINES_S))
    parser.add_argument("--out", type=Path, help="folder for the results of a stage")
    parser.add_argument("--collect", type=Path, metavar="DIR", help="store the results of a folder")
    parser.add_argument("--deadline", type=float, metavar="S", help="time limit of the whole stage")
    parser.add_argument("--device", help="cpu or cuda (default: cuda if there is a GPU)")
    parser.add_argument("--side-by-side", type=int, help="concurrent jobs (default: by cores)")
    parser.add_argument("--seconds", type=float, help="per training (default: 8, on the CPU 4)")
    parser.add_argument("--only", default="", help="run only jobs whose name contains this")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        from bench.accelerate import jobs

        return jobs.main(options.job)
    if options.collect:
        print(f"stored: {collect(options.collect)}\nnext: python -m bench tables")
        return 0
    if not (options.stage and options.out):
        parser.error("expected --stage check or measure with --out DIR, or --collect DIR")

    gpu = gpu_name()
    device = options.device or ("cuda" if gpu else "cpu")
    seconds = options.seconds or (4.0 if device == "cpu" else 8.0)
    cores = len(os.sched_getaffinity(0))
    # A process compiles in several threads, and a GPU has memory for a dozen processes.
    side_by_side = options.side_by_side or max(1, min(10, cores * 2 // 3))
    versions = storage.versions_of(("hotloop", "torch", "numpy", "triton"))
    if shutil.which("nvidia-smi") is None:
        print("nvidia-smi is not installed", flush=True)
    print(f"{options.stage} on {gpu or 'no GPU'}, {cores} cores, {versions}", flush=True)
    runner = Runner(
        options.out,
        started + (options.deadline or DEADLINES_S[options.stage]),
        side_by_side=side_by_side,
        shared_entries={"gpu": gpu, "versions": versions},
        environment={
            "TORCHINDUCTOR_COMPILE_THREADS": str(max(1, 2 * cores // side_by_side)),
            "OMP_NUM_THREADS": "1",
        },
        on_line=lambda line: print(table([line]).splitlines()[0], flush=True),
    )
    stage = Stage(device, seconds)
    jobs = [job for job in getattr(stage, options.stage)() if options.only in job.name]
    try:
        runner.run(jobs)
    finally:
        text = table(runner.lines)
        stored = results_by_place(runner.lines)
        if options.stage == "measure" and "device" in stored:
            text += "\n\n" + tables.all_tables(stored)
        text += f"\n{options.stage} took {time.monotonic() - started:.0f} s"
        (options.out / "table.txt").write_text(text + "\n", encoding="utf-8")
        print(f"\n{text}", flush=True)
    return int(any(line["status"] in ("failed", "timeout") for line in runner.lines))
