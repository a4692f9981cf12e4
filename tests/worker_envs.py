"""Environments that workers import by name, with scripted faults.

Calls are counted in files, one byte each, so that the counts survive the processes.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium import spaces

from tests.toy_envs import ConstantReward

WORKER = os.environ.get("HOTLOOP_WORKER", "")
LONG_S = 60.0
SLOW_S = 0.9


def _cause(fault: str) -> None:
    """Raise, hang or end this process."""
    if fault == "raise":
        raise RuntimeError("the simulator diverged")
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if fault == "exit":
        os._exit(3)
    if fault == "interrupt":
        raise KeyboardInterrupt
    if fault == "slow":
        time.sleep(SLOW_S)
    if fault in ("hang", "kill"):  # a signal may take a moment to arrive
        time.sleep(LONG_S)


class Scripted(gymnasium.Env):
    """Counts its steps and fails in scripted calls.

    Each call adds a byte to the file `<worker>.<call>` of a directory, with calls `make`, `reset`
    and `step`, over all environments and all processes of a worker. `make` writes the process ID to
    the file `<worker>.pid`. The observation is the number of steps in this episode and a random
    number that identifies the episode. The reward is 1 in the first step, 2 in the second, …

    Args:
        directory: Directory of the files.
        length: Steps of an episode.
        ending: "truncated" or "terminated".
        faults: Faults of each worker by call: {"1": {"step 7": "kill"}}.
        pause_s: Duration of a step by worker, in seconds.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, directory, length=10, ending="truncated", faults=None, pause_s=None):
        self.directory = Path(directory)
        self.length = length
        self.ending = ending
        self.faults = (faults or {}).get(WORKER, {})
        self.pause_s = (pause_s or {}).get(WORKER, 0.0)
        (self.directory / f"{WORKER}.pid").write_text(str(os.getpid()))
        self._call("make")

    def reset(self, *, seed=None, options=None):
        self._call("reset")
        super().reset(seed=seed)
        self.count = 0
        self.token = self.np_random.random(dtype=np.float32)
        return self._obs(), {}

    def step(self, action):
        self.fault = self._call("step")
        if self.pause_s:
            time.sleep(self.pause_s)
        self.count += 1
        ends = self.count == self.length
        is_terminated = ends and self.ending == "terminated"
        obs, reward = self._obs(), float(self.count)
        if self.fault == "nan obs":
            obs[1] = np.nan
        if self.fault == "nan reward":
            reward = np.nan
        return obs, reward, is_terminated, ends and not is_terminated, {}

    def _obs(self):
        return np.array([self.count, self.token], np.float32)

    def _call(self, kind):
        path = self.directory / f"{WORKER}.{kind}"
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(fd, b".")
            number = os.fstat(fd).st_size
        finally:
            os.close(fd)
        fault = self.faults.get(f"{kind} {number}", "")
        _cause(fault)
        return fault


class Masked(Scripted):
    """Allows both actions, except in the faults `no action` and `long mask`."""

    def reset(self, *, seed=None, options=None):
        obs, _ = super().reset(seed=seed, options=options)
        return obs, {"action_mask": np.ones(2, np.bool_)}

    def step(self, action):
        *result, _ = super().step(action)
        masks = {"no action": np.zeros(2, np.bool_), "long mask": np.ones(3, np.bool_)}
        return *result, {"action_mask": masks.get(self.fault, np.ones(2, np.bool_))}


def count_calls(directory, kind, worker=None):
    """Return the number of calls of one kind, of one worker or of all."""
    pattern = f"{'*' if worker is None else worker}.{kind}"
    return sum(path.stat().st_size for path in Path(directory).glob(pattern))


class Waits(Scripted):
    """Blocks worker 1 in steps or resets after the first `num_free`, until a file `open` exists."""

    def __init__(self, directory, blocked_call="step", num_free=0, **options):
        super().__init__(directory, **options)
        self.blocked_call = blocked_call
        self.num_free = num_free

    def reset(self, *, seed=None, options=None):
        self._wait_at("reset")
        return super().reset(seed=seed, options=options)

    def step(self, action):
        self._wait_at("step")
        return super().step(action)

    def _wait_at(self, call):
        if WORKER != "1" or self.blocked_call != call:
            return
        self.num_free -= 1
        deadline = time.monotonic() + LONG_S
        while self.num_free < 0 and not (self.directory / "open").exists():
            assert time.monotonic() < deadline, "no file `open` appeared"
            time.sleep(0.005)


class DependsOnWorker(Scripted):
    """The space has a size of 3 plus the number of the worker, or of environments before."""

    def __init__(self, directory, space="observation"):
        super().__init__(directory)
        size = 3 + (int(WORKER) if WORKER else count_calls(directory, "make") - 1)
        if space == "observation":
            self.observation_space = spaces.Box(-1.0, 1.0, (size,), np.float32)
        else:
            self.action_space = spaces.Discrete(size)


class NeedsALibrary(gymnasium.Env):
    """An environment whose library is not installed."""

    def __init__(self):
        raise gymnasium.error.DependencyNotInstalled("no simulator")


class CannotBeMade(ConstantReward):
    """An environment whose constructor raises, in one worker or in all."""

    def __init__(self, worker=None):
        super().__init__()
        if worker in (None, WORKER):
            self._open_the_simulator()

    def _open_the_simulator(self):
        raise OSError("no licence for the simulator")


class LeavesAChild(Scripted):
    """Starts a child process, as simulators do, and writes its process ID to a file."""

    def __init__(self, directory, **options):
        import subprocess
        import sys

        super().__init__(directory, **options)
        code = "import time; time.sleep(60)"
        child = subprocess.Popen([sys.executable, "-c", code])
        (self.directory / f"{WORKER}.child").write_text(str(child.pid))


class LeavesADaemon(Scripted):
    """Starts a process in a new session whose parent has ended, as servers are started."""

    def __init__(self, directory, **options):
        import subprocess

        super().__init__(directory, **options)
        code = "setsid sleep 60 >/dev/null & echo $!"
        pid = subprocess.run(["/bin/sh", "-c", code], stdout=subprocess.PIPE, check=True).stdout
        with (self.directory / f"{WORKER}.daemons").open("ab") as file:
            file.write(pid)


def vector_of_signs(num_envs):
    """Make a vector environment in which each call may be a reset (next-step autoreset)."""
    from tests.toy_envs import next_step_signs

    return next_step_signs(num_envs)


def same_step_cartpoles(num_envs):
    """Make a vector environment that resets within the step."""
    mode = gymnasium.vector.AutoresetMode.SAME_STEP
    return gymnasium.make_vec(
        "CartPole-v1",
        num_envs,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": mode},
    )


class RecordsImports(Scripted):
    """Writes to `<worker>.imports` which modules of the policy its process has imported."""

    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def step(self, action):
        modules = ("torch", "tests.policies.nets", "tests.toy_noise")
        imported = [name for name in modules if name in sys.modules]
        (self.directory / f"{WORKER}.imports").write_text(" ".join(imported))
        return super().step(action)
