"""Learning on one GPU: eager, compiled, as a CUDA graph, and both, beside LeanRL's scripts.

    python -m bench accelerate                        # all parts, some 25 minutes on one GPU
    python -m bench accelerate --part table --row sac --row td3
    python -m bench accelerate --leanrl ~/LeanRL      # its scripts on this machine, too
    python -m bench accelerate --check                # is it right? torch and NumPy are enough

Algorithms have CleanRL's hyper-parameters and one environment each (Atari: eight); simulators run
on the CPU. Each training has a process of its own and is measured for `--seconds` after 5 s of
learning; the profiler looks at the GPU only after that. Parts:

* `table`: steps/s by way of running, the speed-up over eager, the GPU's busy share, launches an
  update;
* `floor`: an update alone, and what its bytes, its arithmetic and one launch would take;
* `learning`: SAC and DQN over three seeds, eager and as a compiled graph: returns over steps and
  over seconds;
* `seeds`: K seeds of PPO trained at once, as lanes;
* `copies`: PPO on N copies of a CartPole on the device.

Without CUDA the eager and compiled columns run on the CPU for some seconds each, and what can't run
is said. Results are kept by the device's name: `accelerate_<device>.json`.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bench import storage
from bench.accelerate import check, floor, tables, trainings
from bench.accelerate.rows import MODES, ROWS
from bench.measuring import Missing

NUM_LANES = (1, 4, 16)
NUM_COPIES = (256, 1024, 4096, 16384)
# Short where there is no GPU: what is seen there is that it runs.
CPU_S, CPU_WARM_S = 4.0, 1.0
SEEDS = (1, 2, 3)


class Bench:
    """What is measured, on which device, and how long.

    Args:
        options: of the command line.
        device: of the updates.
    """

    def __init__(self, options: argparse.Namespace, device: torch.device) -> None:
        self.device, self.options = device, options
        self.has_gpu = device.type == "cuda"
        self.seconds = options.seconds or (12.0 if self.has_gpu else CPU_S)
        self.warm_s = 5.0 if self.has_gpu else CPU_WARM_S
        self.rows = options.row or list(ROWS)

    def train(self, row: str, mode: str, **more: Any) -> dict[str, Any]:
        """A training, or `missing` and why."""
        if "cudagraph" in mode and not self.has_gpu:
            return {"missing": "no CUDA device"}
        job = {"row": row, "mode": mode, "device": self.device.type, "seed": 1}
        job |= {"warm_s": self.warm_s, "seconds": self.seconds, **more}
        try:
            return trainings.in_process(job)
        except Missing as why:
            return {"missing": str(why)}

    def table(self) -> dict[str, Any]:
        """By row and mode."""
        found: dict[str, Any] = {}
        for row in self.rows:
            found[row] = {"modes": {}}
            for mode in MODES:
                got = found[row]["modes"][mode] = self.train(row, mode)
                got.pop("passed", None)
                print(f"{row} {mode}: {tables.told(got)}", flush=True)
            if self.options.leanrl is None:
                continue
            found[row]["leanrl"] = {}
            for mode in MODES:
                try:
                    path = Path(self.options.leanrl)
                    rate = trainings.leanrl(path, ROWS[row], mode, self.seconds)
                    found[row]["leanrl"][mode] = {"steps_per_s": rate}
                except Missing as why:
                    found[row]["leanrl"][mode] = {"missing": str(why)}
                told = tables.told(found[row]["leanrl"][mode])
                print(f"{row} {mode}, LeanRL's script: {told}", flush=True)
        return found

    def floor(self) -> dict[str, Any]:
        """Of the device, and by row."""
        torch.set_num_threads(1)
        seconds = 1.0 if self.has_gpu else 0.3
        modes = MODES if self.has_gpu else ("eager", "compile")
        found: dict[str, Any] = {"device": floor.measure_device(self.device, seconds), "rows": {}}
        for row in self.rows:
            found["rows"][row] = floor.measure_row(row, self.device, seconds, modes)
            print(f"{row}: {tables.told_floor(found, row)}", flush=True)
        return found

    def learning(self) -> dict[str, Any]:
        """Runs of three seeds, by row and mode: what each had reached when."""
        found: dict[str, Any] = {}
        for row, seconds in (("sac", 40.0), ("dqn", 20.0)):
            if row not in self.rows:
                continue
            seconds = self.options.seconds or (seconds if self.has_gpu else 2 * CPU_S)
            found[row] = {}
            for mode in ("eager", "compile+cudagraph" if self.has_gpu else "compile"):
                runs = [self.train(row, mode, seed=seed, seconds=seconds) for seed in SEEDS]
                found[row][mode] = runs
                print(f"{row} {mode}: {tables.told_learning(runs)}", flush=True)
        return found

    def seeds(self) -> dict[str, Any]:
        """Steps a second of all seeds together, by how many there are."""
        counts = [count for count in NUM_LANES if count <= self.options.seeds]
        steps = 40_960 if self.has_gpu else 4_096
        found: dict[str, Any] = {}
        for count in counts:
            more = ["--seeds", f"1-{count}", "--lanes", "on", "--jobs", "1"] if count > 1 else []
            more += ["--env-id", "CartPole-v1", "--total-timesteps", str(steps)]
            found[str(count)] = self._command(more, count, steps)
            print(f"{count} seeds: {tables.told(found[str(count)])}", flush=True)
        return found

    def copies(self) -> dict[str, Any]:
        """Steps a second, by how many copies of CartPole there are on the device."""
        found: dict[str, Any] = {}
        for count in NUM_COPIES if self.has_gpu else NUM_COPIES[:1]:
            steps = 32 * count * (40 if self.has_gpu else 8)
            more = ["--env-id", "hotloop:CartPole", "--num-envs", str(count), "--num-steps", "32"]
            more += ["--update-epochs", "4", "--total-timesteps", str(steps)]
            found[str(count)] = self._command(more, 1, steps)
            print(f"{count} copies: {tables.told(found[str(count)])}", flush=True)
        return found

    def _command(self, more: list[str], num_runs: int, steps: int) -> dict[str, Any]:
        """`hotloop train ppo` with some options: steps a second in its second half."""
        from hotloop.runs import RunDirectory

        mode = "compile+cudagraph" if self.has_gpu else "eager"
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "run"
            command = [sys.executable, "-W", "ignore", "-m", "hotloop", "train", "ppo", *more]
            command += ["--device", self.device.type, "--execution", mode]
            command += ["--torch-threads", "1", "--run-dir", str(path)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                told = (done.stderr.strip().splitlines() or ["no output"])[-1]
                return {"missing": told.rpartition("rror: ")[2][:200]}
            paths = [path / f"seed_{k + 1}" for k in range(num_runs)] if num_runs > 1 else [path]
            lines = [RunDirectory.open(one).metrics() for one in paths]
        rate = 0.0
        for one in lines:
            late = [line for line in one if line["timesteps"] >= steps / 2]
            if len(late) < 2 or late[-1]["elapsed_s"] <= late[0]["elapsed_s"]:
                return {"missing": "too few reports"}
            taken = late[-1]["elapsed_s"] - late[0]["elapsed_s"]
            rate += (late[-1]["timesteps"] - late[0]["timesteps"]) / taken
        return {"steps_per_s": rate}


PARTS: dict[str, Callable[[Bench], dict[str, Any]]] = {
    "table": Bench.table,
    "floor": Bench.floor,
    "learning": Bench.learning,
    "seeds": Bench.seeds,
    "copies": Bench.copies,
}


def result_name(device: torch.device) -> str:
    """What the results of a device are kept as."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return "accelerate_" + re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")


def main() -> int:
    """Measure, print, store; or check."""
    if "--check" in sys.argv:
        return check.main([one for one in sys.argv[1:] if one != "--check"])
    parser = argparse.ArgumentParser(
        prog="python -m bench accelerate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--part", action="append", choices=list(PARTS), help="again for more")
    parser.add_argument("--row", action="append", choices=list(ROWS), help="again for more")
    parser.add_argument("--seconds", type=float, help="of each training (default: 12; CPU: 4)")
    parser.add_argument("--seeds", type=int, default=NUM_LANES[-1], help="at most so many lanes")
    parser.add_argument("--leanrl", metavar="PATH", help="a checkout of LeanRL, to run beside")
    parser.add_argument("--check", action="store_true", help="see `--check --help`")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(trainings.train(json.loads(options.worker))))
        return 0
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    bench, name = Bench(options, device), result_name(device)
    if not bench.has_gpu:
        print("no CUDA device: CUDA graphs are left out, and the rest runs on the CPU for moments")
    found: dict[str, Any] = {}
    if (storage.RESULTS / f"{name}.json").is_file():
        stored = storage.load(name)
        found = {part: stored[part] for part in PARTS if part in stored}
    for part in options.part or PARTS:
        began = time.perf_counter()
        print(f"{part}:", flush=True)
        got = PARTS[part](bench)
        kept = found.get(part, {})
        # Rows that were not measured now stay as they are.
        found[part] = {**kept, **got} if part in ("table", "learning") else got
        path = storage.save(name, {"device": _told_device(device), **found})
        took = time.perf_counter() - began
        print(f"{part} took {took:.0f} s, stored: {path.relative_to(storage.ROOT)}\n", flush=True)
    print(tables.all_of(storage.load(name)))
    return 0


def _told_device(device: torch.device) -> dict[str, Any]:
    if device.type != "cuda":
        return {"name": f"CPU ({platform.machine()})"}
    about = torch.cuda.get_device_properties(device)
    return {
        "name": about.name,
        "memory_gb": round(about.total_memory / 1e9, 1),
        "cuda": torch.version.cuda,
    }


if __name__ == "__main__":
    sys.exit(main())
