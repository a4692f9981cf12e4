"""Measurements of `bench rollouts`, each in its own process.

    python -m bench.rollouts.measure WAY ARGUMENTS

prints the figures of one measurement as JSON. `ARGUMENTS` are the arguments of the function in
`WAYS`, as JSON.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bench.measuring import Missing
from bench.rollouts.central import act_centrally
from bench.rollouts.clusters import (
    fragments_on_ray,
    recover_on_ray,
    sample_on_ray,
    start_on_ray,
)
from bench.rollouts.diagnose import diagnose
from bench.rollouts.environments import CARTPOLE, IDLE, UNEVEN, SleepTotals, read_ledger
from bench.rollouts.samplers import HotloopSampler, make_sampler

MARK = "@rollouts "  # prefix of the line with the result, since libraries also print
_PR_SET_PDEATHSIG = 1


def learn(seconds: float) -> None:
    """Occupy a core for some seconds, like a learner."""
    until = time.perf_counter() + seconds
    matrix = np.ones((128, 128), np.float32)
    product = np.empty_like(matrix)
    while time.perf_counter() < until:
        np.matmul(matrix, matrix, out=product)


def sample(
    method: str,
    *,
    env: str = UNEVEN,
    workers: int = 24,
    per_worker: int = 1,
    num_steps: int = 128,
    seconds: float = 20.0,
    loads: tuple[float, ...] = (0.0,),
    env_kwargs: Mapping[str, Any] | None = None,
    act_s: float = 0.0,
) -> dict[str, float]:
    """Measure the transitions per second, and compare them with the environments' own rate.

    Args:
        method: name of the sampler.
        env: id of the environment.
        workers: W.
        per_worker: environments per worker.
        num_steps: T.
        seconds: duration of each measurement, which ends with a call to `advance`.
        loads: shares of the wall time that the learner takes, one measurement each.
        env_kwargs: arguments of the environment.
        act_s: seconds of a lock-step policy.

    Returns:
        By load in percent, such as `rate 0%`: `rate`, transitions per second, and for environments
        with a ledger `step_s` and `reset_s`, mean seconds of a step and a reset, `ideal`, the sum
        of the workers' rates alone with the actual sleeps, `of_ideal`, and `busy`, the share of the
        environments' time in steps and resets.
    """
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as ledger:
        kwargs = {**(env_kwargs or {}), **({"ledger": ledger} if env == UNEVEN else {})}
        sampler = make_sampler(
            method,
            env=env,
            workers=workers,
            per_worker=per_worker,
            num_steps=num_steps,
            env_kwargs=kwargs,
            act_s=act_s,
        )
        clock = time.perf_counter
        try:
            for load in loads:
                sampler.advance()
                start_s = clock()
                sampler.advance()
                # Start and end right after a call, so that the amount collected ahead by overlap is
                # the same.
                start, before = clock(), read_ledger(ledger)
                num_transitions, took_s = 0, start - start_s
                while clock() - start < seconds:
                    if load:
                        learn(load / (1.0 - load) * took_s)
                    start_s = clock()
                    num_transitions += sampler.advance()
                    took_s = clock() - start_s
                elapsed_s = clock() - start
                slept = read_ledger(ledger).since(before)
                load_figures = {"rate": num_transitions / elapsed_s}
                if env == UNEVEN:
                    load_figures |= _compare_with_ideal(
                        slept, load_figures["rate"], sampler.num_envs, elapsed_s
                    )
                figures |= {f"{name} {load:.0%}": value for name, value in load_figures.items()}
        finally:
            sampler.close()
    return figures


def _compare_with_ideal(
    slept: SleepTotals, rate: float, num_envs: int, elapsed_s: float
) -> dict[str, float]:
    ideal = num_envs * slept.steps / slept.busy_s
    return {
        "step_s": slept.step_s / slept.steps,
        "reset_s": slept.reset_s / slept.resets if slept.resets else 0.0,
        "ideal": ideal,
        "of_ideal": rate / ideal,
        "busy": slept.busy_s / (num_envs * elapsed_s),
    }


_BARE = f"""
import sys, time
import gymnasium, numpy as np
num_envs, seconds = int(sys.argv[1]), float(sys.argv[2])
envs = [gymnasium.make("{CARTPOLE}", disable_env_checker=True) for _ in range(num_envs)]
for env in envs:
    env.reset(seed=0)
actions = np.random.default_rng(0).integers(0, 2, (4096, num_envs)).tolist()
print(flush=True)
sys.stdin.readline()
steps, start = 0, time.perf_counter()
while time.perf_counter() - start < seconds:
    for env, action in zip(envs, actions[steps % 4096]):
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            env.reset()
    steps += 1
print(steps * num_envs / (time.perf_counter() - start))
"""


def bare(*, workers: int, per_worker: int, seconds: float) -> dict[str, float]:
    """Measure concurrent processes that step their environments in a plain loop."""
    command = [sys.executable, "-c", _BARE, str(per_worker), str(seconds)]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(workers)
    ]
    for process in processes:  # wait until all are ready
        assert process.stdout is not None
        process.stdout.readline()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    answers = [process.communicate()[0] for process in processes]
    return {"rate 0%": sum(map(float, answers))}


def fragments(method: str, *, num_steps: int, per_worker: int, seconds: float) -> dict[str, float]:
    """Measure the seconds of one worker's fragment with an idle environment."""
    sampler = make_sampler(
        method, env=IDLE, workers=1, per_worker=per_worker, num_steps=num_steps, env_kwargs={}
    )
    clock, durations_s = time.perf_counter, []
    try:
        for _ in range(20):
            sampler.advance()
        until = clock() + seconds
        while clock() < until:
            start_s = clock()
            sampler.advance()
            durations_s.append(clock() - start_s)
    finally:
        sampler.close()
    return {"seconds": statistics.median(durations_s)}


_IMPORTS = f"""
import gymnasium
env = gymnasium.make("{CARTPOLE}")
env.reset()
"""


def start() -> dict[str, float]:
    """Measure a worker with one CartPole: seconds until ready, memory after some fragments."""
    import hotloop.rollouts.processes.pool  # noqa: F401 (exclude the learner's imports)

    start_s = time.perf_counter()
    sampler = HotloopSampler(
        CARTPOLE, workers=1, per_worker=1, num_steps=128, method="barrier", env_kwargs={}, minimum=1
    )
    ready_s = time.perf_counter() - start_s
    try:
        for _ in range(20):
            sampler.advance()
        pid = sampler.environments.workers[0].pid
        resident_bytes = _resident(Path(f"/proc/{pid}/status").read_text(encoding="utf-8"))
        has_torch = "/torch/" in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")
    finally:
        sampler.close()
    program = f'{_IMPORTS}\nprint(open("/proc/self/status").read())'
    status = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    start_s = time.perf_counter()
    subprocess.run([sys.executable, "-c", _IMPORTS], check=True)
    return {
        "ready_s": ready_s,
        "imports_s": time.perf_counter() - start_s,
        "resident_bytes": resident_bytes,
        "imports_bytes": _resident(status),
        "has_torch": float(has_torch),
    }


def _resident(status: str) -> float:
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return float(line.split()[1]) * 1024


def choose(
    workers: int | str,
    *,
    env: str,
    num_envs: int,
    num_steps: int,
    timesteps: int,
    env_kwargs: Mapping[str, Any] | None = None,
) -> dict[str, float]:
    """Measure PPO from the call to its result, with the probe and the start of workers.

    Returns:
        `seconds`, and the number of `workers`.
    """
    from hotloop.algorithms import ppo
    from hotloop.runs import RunDirectory

    start_s = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        result = ppo.train(
            ppo.Config(
                env_id=env,
                env_kwargs=dict(env_kwargs or {}),
                num_envs=num_envs,
                num_steps=num_steps,
                total_timesteps=timesteps,
                workers=workers,  # pyright: ignore[reportArgumentType]
                torch_threads=1,
                execution="eager",
                runs_dir=folder,
            ),
            progress=False,
        )
        took_s = time.perf_counter() - start_s
        chosen = RunDirectory.open(result.run_dir).config["config"]["workers"]
    return {"seconds": took_s, "workers": float(chosen)}


WAYS: dict[str, Callable[..., dict[str, float]]] = {
    "sample": sample,
    "act_centrally": act_centrally,
    "bare": bare,
    "fragments": fragments,
    "start": start,
    "diagnose": diagnose,
    "choose": choose,
    "sample_on_ray": sample_on_ray,
    "fragments_on_ray": fragments_on_ray,
    "start_on_ray": start_on_ray,
    "recover_on_ray": recover_on_ray,
}


def measure(way: str, *, timeout_s: float = 900.0, **arguments: Any) -> dict[str, Any]:
    """Measure in a new process.

    Args:
        way: key of `WAYS`.
        timeout_s: seconds until the process and its children are killed.
        arguments: arguments of the way's function.

    Returns:
        The figures, or `missing` with the reason.
    """
    command = [sys.executable, "-m", "bench.rollouts.measure", way, json.dumps(arguments)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        output, errors = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return {"missing": f"failed: took more than {timeout_s:g} s"}
    except BaseException:
        os.killpg(process.pid, signal.SIGTERM)
        raise
    for line in output.splitlines():
        if line.startswith(MARK):
            return json.loads(line.removeprefix(MARK))
    last = errors.strip().splitlines()[-1:]
    return {"missing": f"failed: {''.join(last)[:200]}"}


def main() -> int:
    """Measure and print the figures."""
    # Terminate this process together with its parent. The workers do the same.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    way, arguments = sys.argv[1:]
    try:
        figures: dict[str, Any] = WAYS[way](**json.loads(arguments))
    except Missing as error:
        figures = {"missing": str(error)}
    print(f"{MARK}{json.dumps(figures)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
