"""The ways to collect that `bench.rollouts` compares, each measured in a process of its own.

    python -m bench.rollout_ways WAY ARGUMENTS

prints the figures of one measurement as JSON. `ARGUMENTS` are JSON: those of the function in
`WAYS`.
"""

from __future__ import annotations

import ctypes
import itertools
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
from typing import Any, NamedTuple, Protocol

import numpy as np

from bench.rollout_envs import Slept, Uneven, read_ledger

MARK = "@rollouts "  # before the line that is the answer; libraries print as well
UNEVEN, IDLE, CARTPOLE = "bench.rollout_envs:Uneven", "bench.rollout_envs:Idle", "CartPole-v1"
_PR_SET_PDEATHSIG = 1
_ACTIONS_AHEAD = 4_096


class Missing(Exception):
    """What is to be measured is not there."""


class Sampler(Protocol):
    """Something that collects."""

    num_envs: int

    def advance(self) -> int:
        """Collect what it gives at once: how many transitions that were."""
        ...

    def close(self) -> None:
        """End it."""
        ...


# --- hotloop --------------------------------------------------------------------------------------


class Hotloop:
    """Workers, or the same environments inline, with the tiniest policy.

    Args:
        env: an id.
        workers: W.
        per_worker: environments of each.
        num_steps: T.
        how: `barrier`, `variable`, `async`, `barrier overlap`, `variable overlap`, `inline`; or
            `async random`, uniform actions that no network is asked for.
        env_kwargs: for the environment.
        minimum: async: transitions of a call, at least.
    """

    def __init__(
        self,
        env: str,
        *,
        workers: int,
        per_worker: int,
        num_steps: int,
        how: str,
        env_kwargs: Mapping[str, Any],
        minimum: int,
    ) -> None:
        from hotloop.envs import make_vec
        from hotloop.policies import (
            ActingPolicy,
            Exploration,
            PolicySnapshot,
            actor,
            actor_critic,
        )
        from hotloop.rollouts import CollectionOptions, InlineEnvironments
        from hotloop.rollouts.pool import WorkerPool

        self.num_envs = workers * per_worker
        made: dict[str, Any] = {"env_kwargs": dict(env_kwargs), "stagger": self.num_envs}
        if how == "inline":
            environments: Any = InlineEnvironments(
                [
                    make_vec(env, per_worker, first_env=worker * per_worker, **made)
                    for worker in range(workers)
                ]
            )
        else:
            environments = WorkerPool(env, num_workers=workers, envs_per_worker=per_worker, **made)
        schedule, _, extra = how.replace("inline", "barrier").partition(" ")
        if extra == "random":
            network = actor(environments, "greedy", hidden_sizes=(16,))
            exploration = Exploration(epsilon=(1.0, 1.0))
        else:
            network, exploration = actor_critic(environments, hidden_sizes=(16,)), None
        self._params = network.initial_parameters(0)
        self._snapshot = PolicySnapshot
        self._version = 0
        plan: Any = {"num_steps": num_steps, "seed": 0, "schedule": schedule, "minimum": minimum}
        self.environments = environments
        self.rollout = environments.rollout(
            ActingPolicy(network, PolicySnapshot(0, self._params), exploration=exploration),
            CollectionOptions(**plan, overlap=extra == "overlap"),
        )

    def advance(self) -> int:
        """Collect, and publish."""
        fragments = self.rollout.collect()
        self.rollout.pop_episodes()
        self._version += 1
        self.rollout.publish(self._snapshot(self._version, self._params))
        return sum(int(fragment.valid.sum()) for fragment in fragments)

    def close(self) -> None:
        """End the workers."""
        self.rollout.close()


# --- peers ----------------------------------------------------------------------------------------


class Lockstep:
    """A vector environment, stepped with actions that were drawn ahead.

    Args:
        step: the vector environment's.
        close: likewise.
        num_envs: N.
        act_s: seconds that a policy takes for each step; slept.
    """

    def __init__(
        self,
        step: Callable[[Any], Any],
        close: Callable[[], None],
        num_envs: int,
        act_s: float = 0.0,
    ) -> None:
        self.num_envs = num_envs
        self._step, self._close, self._act_s = step, close, act_s
        self._actions = np.random.default_rng(0).integers(0, 2, (_ACTIONS_AHEAD, num_envs))
        self._number = 0

    def advance(self) -> int:
        """One step of all."""
        if self._act_s:
            time.sleep(self._act_s)
        self._step(self._actions[self._number % _ACTIONS_AHEAD])
        self._number += 1
        return self.num_envs

    def close(self) -> None:
        """End it."""
        self._close()


def _single(env: str, env_kwargs: Mapping[str, Any]) -> Callable[[], Any]:
    """What makes one environment, as its users would."""
    import gymnasium

    if env == UNEVEN:
        return lambda: Uneven(**env_kwargs)
    return lambda: gymnasium.make(env, **env_kwargs)


def sb3(env: str, num_envs: int, env_kwargs: Mapping[str, Any], act_s: float) -> Lockstep:
    """Stable-Baselines3's processes; forked, since two dozen that import torch need 5 GB."""
    from stable_baselines3.common.vec_env import (  # pyright: ignore[reportMissingImports]
        SubprocVecEnv,
    )

    made = SubprocVecEnv([_single(env, env_kwargs)] * num_envs, start_method="fork")
    made.reset()
    return Lockstep(made.step, made.close, num_envs, act_s)


def gymnasium_async(
    env: str, num_envs: int, env_kwargs: Mapping[str, Any], act_s: float
) -> Lockstep:
    """Gymnasium's processes."""
    from gymnasium.vector import AsyncVectorEnv

    made = AsyncVectorEnv([_single(env, env_kwargs)] * num_envs)
    made.reset(seed=0)
    return Lockstep(made.step, made.close, num_envs, act_s)


def _envpool(num_envs: int, batch_size: int) -> Any:
    try:
        import envpool  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise Missing("not installed") from None
    return envpool.make(
        CARTPOLE, env_type="gymnasium", num_envs=num_envs, batch_size=batch_size, num_threads=2
    )


def envpool_sync(env: str, num_envs: int, env_kwargs: Mapping[str, Any], act_s: float) -> Lockstep:
    """EnvPool's threads, all environments in a step."""
    made = _envpool(num_envs, num_envs)
    made.reset()
    return Lockstep(made.step, made.close, num_envs, act_s)


class EnvPoolAsync:
    """EnvPool's threads, whichever half of the environments is first."""

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self._made = _envpool(num_envs, num_envs // 2)
        self._made.async_reset()
        actions = np.random.default_rng(0).integers(0, 2, (_ACTIONS_AHEAD, num_envs // 2))
        self._actions, self._number = actions, 0

    def advance(self) -> int:
        """Receive, and send."""
        *_, info = self._made.recv()
        self._made.send(self._actions[self._number % _ACTIONS_AHEAD], info["env_id"])
        self._number += 1
        return self.num_envs // 2

    def close(self) -> None:
        """End it."""
        self._made.close()


def make_sampler(
    how: str,
    *,
    env: str,
    workers: int,
    per_worker: int,
    num_steps: int,
    env_kwargs: Mapping[str, Any],
    act_s: float = 0.0,
) -> Sampler:
    """The sampler of a name.

    Raises:
        Missing: its library is not installed.
    """
    num_envs = workers * per_worker
    if how == "envpool async":
        return EnvPoolAsync(num_envs)
    peers = {"sb3": sb3, "gymnasium": gymnasium_async, "envpool": envpool_sync}
    if how in peers:
        try:
            return peers[how](env, num_envs, env_kwargs, act_s)
        except ImportError:
            raise Missing("not installed") from None
    return Hotloop(
        env,
        workers=workers,
        per_worker=per_worker,
        num_steps=num_steps,
        how=how,
        env_kwargs=env_kwargs,
        minimum=num_envs if env == UNEVEN else num_steps * num_envs,
    )


# --- what is measured -----------------------------------------------------------------------------


def learn(seconds: float) -> None:
    """Take a core for so long, as a learner would."""
    until = time.perf_counter() + seconds
    matrix = np.ones((128, 128), np.float32)
    product = np.empty_like(matrix)
    while time.perf_counter() < until:
        np.matmul(matrix, matrix, out=product)


def sample(
    how: str,
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
    """Transitions a second, and how they relate to what the environments could have given.

    Args:
        how: which sampler.
        env: which environment.
        workers: W.
        per_worker: environments of each.
        num_steps: T.
        seconds: of each measurement, which ends with a call to `advance`.
        loads: shares of the wall time that the learner takes, one measurement after another.
        env_kwargs: for the environment.
        act_s: of a lock-step policy.

    Returns:
        By load in percent, `… 0` and so on: `rate`, transitions a second; and of environments that
        keep a ledger `step_s`, a step's mean, `reset_s`, a reset's, `ideal`, what the rates of the
        workers alone add up to with the times that were really slept, `of_ideal`, and `busy`, the
        share of the environments' time in steps and resets.
    """
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as ledger:
        kwargs = {**(env_kwargs or {}), **({"ledger": ledger} if env == UNEVEN else {})}
        sampler = make_sampler(
            how,
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
                began = clock()
                sampler.advance()
                # It begins and ends right after a call: what overlap has then collected ahead is
                # as much at the end as at the beginning.
                start, before = clock(), read_ledger(ledger)
                num_transitions, took_s = 0, start - began
                while clock() - start < seconds:
                    if load:
                        learn(load / (1.0 - load) * took_s)
                    began = clock()
                    num_transitions += sampler.advance()
                    took_s = clock() - began
                elapsed_s = clock() - start
                slept = read_ledger(ledger).since(before)
                found = {"rate": num_transitions / elapsed_s}
                if env == UNEVEN:
                    found |= _beside_ideal(slept, found["rate"], sampler.num_envs, elapsed_s)
                figures |= {f"{name} {load:.0%}": value for name, value in found.items()}
        finally:
            sampler.close()
    return figures


def _beside_ideal(slept: Slept, rate: float, num_envs: int, elapsed_s: float) -> dict[str, float]:
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
    """Processes that step their environments in a plain loop, at the same time."""
    command = [sys.executable, "-c", _BARE, str(per_worker), str(seconds)]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(workers)
    ]
    for process in processes:  # all are ready before one begins
        assert process.stdout is not None
        process.stdout.readline()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    answers = [process.communicate()[0] for process in processes]
    return {"rate 0%": sum(map(float, answers))}


def fragments(how: str, *, num_steps: int, per_worker: int, seconds: float) -> dict[str, float]:
    """Seconds a fragment of an environment that does nothing, one worker."""
    sampler = make_sampler(
        how, env=IDLE, workers=1, per_worker=per_worker, num_steps=num_steps, env_kwargs={}
    )
    clock, taken = time.perf_counter, []
    try:
        for _ in range(20):
            sampler.advance()
        until = clock() + seconds
        while clock() < until:
            began = clock()
            sampler.advance()
            taken.append(clock() - began)
    finally:
        sampler.close()
    return {"seconds": statistics.median(taken)}


_IMPORTS = f"""
import gymnasium
env = gymnasium.make("{CARTPOLE}")
env.reset()
"""


def start() -> dict[str, float]:
    """One worker with one CartPole: until it is ready, and what it holds after some fragments."""
    import hotloop.rollouts.pool  # noqa: F401 (what the learner imports is not the worker's)

    began = time.perf_counter()
    sampler = Hotloop(
        CARTPOLE, workers=1, per_worker=1, num_steps=128, how="barrier", env_kwargs={}, minimum=1
    )
    ready_s = time.perf_counter() - began
    try:
        for _ in range(20):
            sampler.advance()
        pid = sampler.environments.workers[0].pid
        held = _resident(Path(f"/proc/{pid}/status").read_text(encoding="utf-8"))
        has_torch = "/torch/" in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")
    finally:
        sampler.close()
    own = f'{_IMPORTS}\nprint(open("/proc/self/status").read())'
    status = subprocess.run(
        [sys.executable, "-c", own], capture_output=True, text=True, check=True
    ).stdout
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", _IMPORTS], check=True)
    return {
        "ready_s": ready_s,
        "imports_s": time.perf_counter() - began,
        "resident_bytes": held,
        "imports_bytes": _resident(status),
        "has_torch": float(has_torch),
    }


def _resident(status: str) -> float:
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return float(line.split()[1]) * 1024


# --- whole trainings, taken apart -----------------------------------------------------------------


class Sizes(NamedTuple):
    """Of a training that is taken apart."""

    workers: int
    num_steps: int
    iterations: int
    epochs: int = 10
    minibatch: int = 256


def diagnose(how: str, *, sizes: list[int], env_kwargs: Mapping[str, Any]) -> dict[str, float]:
    """Where the time of PPO goes: a fragment's sampling and optimising, a step, a reset, acting.

    Args:
        how: `sb3`, or hotloop's schedule, perhaps with ` overlap`.
        sizes: `Sizes`.
        env_kwargs: of `Uneven`.

    Returns:
        `sampling_s`, `optimising_s` and `wall_s` of an iteration (with overlap the first two may
        add up to more than the wall time, or sampling be what is waited for), `step_s` with
        `step_p50_s` and `step_p99_s` as who samples sees it, `reset_s`, `inference_s` for a step of
        what acts at once, `waited` (share of the environments' time in which they do nothing),
        `rate` and `ideal` in transitions a second.
    """
    with tempfile.TemporaryDirectory() as folder:
        ledger = Path(folder, "ledger")
        ledger.mkdir()
        kwargs = {**env_kwargs, "ledger": str(ledger)}
        run = _diagnose_sb3 if how == "sb3" else _diagnose_hotloop
        figures, marks = run(how, Sizes(*sizes), kwargs, folder)
    (start_s, before), (end_s, after) = marks[0], marks[-1]
    slept, elapsed_s, workers = after.since(before), end_s - start_s, sizes[0]
    # What environments made, not what was learned from: with overlap, how much lies ready differs
    # from one end to the other.
    rate = slept.steps / elapsed_s
    return {
        **figures,
        "wall_s": sizes[0] * sizes[1] / rate,
        "reset_s": slept.reset_s / slept.resets if slept.resets else 0.0,
        "slept_step_s": slept.step_s / slept.steps,
        "waited": 1.0 - slept.busy_s / (workers * elapsed_s),
        "rate": rate,
        "ideal": workers * slept.steps / slept.busy_s,
    }


Marks = list[tuple[float, Slept]]


def _diagnose_hotloop(
    how: str, sizes: Sizes, env_kwargs: dict[str, Any], folder: str
) -> tuple[dict[str, float], Marks]:
    from hotloop import timing
    from hotloop.algorithms import ppo
    from hotloop.rollouts.accounting import shares_of

    schedule, _, overlap = how.partition(" ")
    marks: Marks = []

    def mark(progress: Any) -> None:
        marks.append((time.monotonic(), read_ledger(env_kwargs["ledger"])))

    result = ppo.train(
        ppo.Config(
            env_id=UNEVEN,
            env_kwargs=env_kwargs,
            workers=sizes.workers,
            envs_per_worker=1,
            num_steps=sizes.num_steps,
            total_timesteps=sizes.iterations * sizes.num_steps * sizes.workers,
            update_epochs=sizes.epochs,
            num_minibatches=max(1, sizes.num_steps * sizes.workers // sizes.minibatch),
            schedule=schedule,  # pyright: ignore[reportArgumentType]
            overlap=bool(overlap),
            compile="off",
            runs_dir=folder,
        ),
        on_report=mark,
    )
    recordings, _ = timing.read_directory(Path(result.run_dir) / "timing")
    trees = {recording.component: recording.tree() for recording in recordings}
    workers = [tree for name, tree in trees.items() if name.startswith("worker-")]
    shares = [shares_of(tree) for tree in workers]
    learner = trees["learner"]
    acting = [tree.find("act") for tree in workers]
    steps = [tree.find("env_step") for tree in workers]
    figures = {
        "sampling_s": learner.find("collect").mean_ns / 1e9,
        "optimising_s": learner.find("update").mean_ns / 1e9,
        "step_s": sum(node.total_ns for node in steps) / sum(node.count for node in steps) / 1e9,
        "step_p50_s": statistics.median(share["step_p50_s"] for share in shares),
        "step_p99_s": statistics.median(share["step_p99_s"] for share in shares),
        "inference_s": sum(node.total_ns for node in acting)
        / sum(node.count for node in acting)
        / 1e9,
    }
    return figures, marks[1:]  # the first is before the first iteration


def _diagnose_sb3(
    how: str, sizes: Sizes, env_kwargs: dict[str, Any], folder: str
) -> tuple[dict[str, float], Marks]:
    try:
        import torch
        from stable_baselines3 import PPO  # pyright: ignore[reportMissingImports]
        from stable_baselines3.common.callbacks import (  # pyright: ignore[reportMissingImports]
            BaseCallback,
        )
        from stable_baselines3.common.vec_env import (  # pyright: ignore[reportMissingImports]
            SubprocVecEnv,
        )
    except ImportError:
        raise Missing("not installed") from None
    marks: Marks = []
    sampling: list[float] = []
    series: dict[str, list[float]] = {"step": [], "inference": []}

    class Times(BaseCallback):
        """Keeps when each fragment begins and how long it takes."""

        def _on_step(self) -> bool:
            return True

        def _mark(self) -> None:
            marks.append((time.monotonic(), read_ledger(env_kwargs["ledger"])))

        def _on_rollout_start(self) -> None:
            self._mark()

        def _on_rollout_end(self) -> None:
            sampling.append(time.monotonic() - marks[-1][0])

        def _on_training_end(self) -> None:
            self._mark()

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            answer = function(*arguments, **named)
            series[name].append(time.perf_counter() - began)
            return answer

        return call

    make = _single(UNEVEN, env_kwargs)
    envs: Any = SubprocVecEnv([make] * sizes.workers, start_method="fork")
    torch.set_num_threads(1)
    envs.step = timed("step", envs.step)
    size = sizes.num_steps * sizes.workers
    model = PPO(
        "MlpPolicy",
        envs,
        n_steps=sizes.num_steps,
        batch_size=min(size, sizes.minibatch),
        n_epochs=sizes.epochs,
        device="cpu",
        seed=1,
    )
    model.policy.forward = timed("inference", model.policy.forward)
    model.learn(sizes.iterations * size, callback=Times())
    envs.close()
    iterations = [end - begin for (begin, _), (end, _) in itertools.pairwise(marks)]
    optimising = [whole - part for whole, part in zip(iterations, sampling, strict=True)]
    figures = {
        "sampling_s": statistics.fmean(sampling),
        "optimising_s": statistics.fmean(optimising),
        "step_s": statistics.fmean(series["step"]),
        "step_p50_s": float(np.percentile(series["step"], 50)),
        "step_p99_s": float(np.percentile(series["step"], 99)),
        "inference_s": statistics.fmean(series["inference"]),
    }
    return figures, marks


def choose(
    workers: int | str,
    *,
    env: str,
    num_envs: int,
    num_steps: int,
    timesteps: int,
    env_kwargs: Mapping[str, Any] | None = None,
) -> dict[str, float]:
    """PPO, from the call to its result: the probe, starting workers and learning included.

    Returns:
        `seconds` of it, and `workers`, how many there were.
    """
    from hotloop.algorithms import ppo
    from hotloop.runs import RunDirectory

    began = time.perf_counter()
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
                compile="off",
                runs_dir=folder,
            )
        )
        took_s = time.perf_counter() - began
        chosen = RunDirectory.open(result.run_dir).config["config"]["workers"]
    return {"seconds": took_s, "workers": float(chosen)}


# --- a process for each measurement ---------------------------------------------------------------

WAYS: dict[str, Callable[..., dict[str, float]]] = {
    "sample": sample,
    "bare": bare,
    "fragments": fragments,
    "start": start,
    "diagnose": diagnose,
    "choose": choose,
}


def measure(way: str, *, timeout_s: float = 900.0, **arguments: Any) -> dict[str, Any]:
    """One measurement in a fresh process.

    Args:
        way: of `WAYS`.
        timeout_s: after which the process, and all that it started, are killed.
        arguments: of the way's function.

    Returns:
        Its figures, or `missing`: why there are none.
    """
    command = [sys.executable, "-m", "bench.rollout_ways", way, json.dumps(arguments)]
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
    """Measure, and answer."""
    # Whoever stops the bench stops this, and by that the workers, which do the same.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    way, arguments = sys.argv[1:]
    try:
        figures: dict[str, Any] = WAYS[way](**json.loads(arguments))
    except Missing as why:
        figures = {"missing": str(why)}
    print(f"{MARK}{json.dumps(figures)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
