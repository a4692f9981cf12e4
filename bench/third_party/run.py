"""`python -m bench third-party`: train on each environment, print and store what works."""

from __future__ import annotations

import argparse
import importlib.metadata
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import storage, third_party
from bench.third_party import ENTRIES, RESULT, Entry

_TIMEOUT_S = 300.0
_STEPS = {"ppo": 2_048, "sac": 1_000}


class StepFailed(Exception):
    """A command failed or took too long."""


def hotloop(command: str) -> None:
    """Run a command of hotloop in this environment.

    Raises:
        StepFailed: it failed. The error is its last line.
    """
    program = [sys.executable, "-m", "hotloop", *shlex.split(command, posix="{" not in command)]
    try:
        result = subprocess.run(
            program, capture_output=True, text=True, timeout=_TIMEOUT_S, cwd=storage.ROOT
        )
    except subprocess.TimeoutExpired:
        raise StepFailed(f"took more than {_TIMEOUT_S:.0f} s") from None
    if result.returncode:
        lines = [line for line in result.stderr.splitlines() if line.strip()] or ["no error"]
        raise StepFailed(lines[-1][:300])


def commands(entry: Entry, folder: Path) -> dict[str, str]:
    """Return the commands that an entry runs, by their purpose."""
    task = f"--env-id {entry.env_id} {entry.options}".strip()
    small = "--hidden-sizes 32 32 --execution eager"
    ppo = f"--num-envs {entry.num_envs} --num-steps 128 {small}"
    steps = _STEPS["ppo"]
    lines = {
        "PPO": f"train ppo {task} {ppo} --total-timesteps {steps} --run-dir {folder}/ppo",
        "resume": f"resume {folder}/ppo --trust --total-timesteps {2 * steps}",
        "eval": f"eval {folder}/ppo --trust --episodes 2",
        "workers": f"train ppo {task} {ppo} --total-timesteps {steps} --workers 2 "
        f"--run-dir {folder}/workers",
    }
    if entry.has_box:
        lines["SAC"] = (
            f"train sac {task} {small} --learning-starts 200 --batch-size 64 "
            f"--total-timesteps {_STEPS['sac']} --run-dir {folder}/sac"
        )
    return lines


def run_entry(entry: Entry) -> dict[str, Any]:
    """Run an entry's commands, and return the version and the outcome of each."""
    outcomes: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="hotloop-third-party-") as folder:
        for purpose, command in commands(entry, Path(folder)).items():
            start_s = time.monotonic()
            try:
                hotloop(command)
                outcomes[purpose] = "yes"
            except StepFailed as error:
                outcomes[purpose] = f"no: {error}"
            taken_s = time.monotonic() - start_s
            print(f"  {purpose}: {outcomes[purpose]} ({taken_s:.0f} s)", flush=True)
    return {
        "version": importlib.metadata.version(entry.package),
        "date": time.strftime("%Y-%m-%d"),
        "checks": outcomes,
    }


def main() -> int:
    """Run the entries whose package is installed; return 1 if a command failed."""
    parser = argparse.ArgumentParser(
        prog="python -m bench third-party",
        description=third_party.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--names", nargs="+", choices=ENTRIES, default=list(ENTRIES))
    parser.add_argument("--store", action="store_true", help="write bench/results")
    options = parser.parse_args()
    results: dict[str, Any] = {}
    for name in options.names:
        entry = ENTRIES[name]
        if not storage.versions_of([entry.package]):
            print(f"{name}: left out, {entry.package} is not installed")
            continue
        print(name, flush=True)
        results[name] = run_entry(entry)
        if options.store:  # after each entry: a long run may be interrupted
            store(results)
    outcomes = [outcome for result in results.values() for outcome in result["checks"].values()]
    return int(any(outcome != "yes" for outcome in outcomes))


def store(results: dict[str, Any]) -> None:
    """Write results beside those of the other entries."""
    stored: dict[str, Any] = {}
    if (storage.RESULTS / f"{RESULT}.json").exists():
        stored = storage.load(RESULT)
    both = stored | results
    storage.save(RESULT, {name: both[name] for name in ENTRIES if name in both})


if __name__ == "__main__":
    sys.exit(main())
