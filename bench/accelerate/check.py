"""Checks on a bare machine: is a graph's update the eager one's, and what runs on the device right?

    python bench/accelerate/check.py
    python -m bench accelerate --check

Needs torch, NumPy and this project (a wheel, or `src` on the path), and no more: no Numba, tyro,
Gymnasium, rich. Each check is printed with PASS, FAIL or SKIP and why; the exit code is 1 where one
failed. On a machine without CUDA graphs are skipped, and the rest runs on the CPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import platform
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

if __package__ in (None, ""):  # as a script
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch

NUM_UPDATES = 20
# Of the way that the parameters went, how far another way of running may end from the eager one.
# Adam's first steps are all of one length, whatever the gradient's: rounding turns some around.
APART = {"cudagraph": 1e-3, "compile": 2e-2, "compile+cudagraph": 2e-2}
STAND_INS = ("rich", "safetensors", "threadpoolctl")
ABSENT = {
    "MuJoCo": "mujoco",
    "ALE": "ale_py",
    "Warp": "warp",
    "Gymnasium": "gymnasium",
}


class Skipped(Exception):
    """What is to be checked is not there; the message says what."""


class StandIns(MetaPathFinder, Loader):
    """Stands in for libraries that are imported on the way, and that no check uses.

    Whatever is taken from one of them is a class, which raises as soon as it is called.
    """

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        """See `MetaPathFinder.find_spec`; asked last, when nobody has the module."""
        if fullname.partition(".")[0] not in STAND_INS:
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """See `Loader`."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """See `Loader`."""

        def absent(self: object, *_: object, **__: object) -> None:
            raise ModuleNotFoundError(
                f"{module.__name__} is not installed, and is needed after all"
            )

        def attribute(name: str) -> type:
            if name.startswith("__"):
                raise AttributeError(name)
            return type(name, (), {"__init__": absent})

        vars(module)["__getattr__"] = attribute


def check_updates(name: str, mode: str, device: torch.device) -> str:
    """N updates of an algorithm, run in some way, against the same ones eager."""
    from bench.accelerate.rows import ROWS
    from bench.accelerate.updates import make_updates
    from hotloop.learner.state import tensors

    if "cudagraph" in mode and device.type != "cuda":
        raise Skipped("no CUDA device: graphs are of one")
    eager, other = (make_updates(ROWS[name], one, device) for one in ("eager", mode))
    start = {key: x.clone() for key, x in tensors(eager.learner.state).items()}
    count = num_updates(name, device)
    for one in (eager, other):
        one.make(count)
    after, theirs = tensors(eager.learner.state), tensors(other.learner.state)
    worst, at = 0.0, ""
    for key, x in after.items():
        if not x.is_floating_point():
            assert torch.equal(x, theirs[key]), f"{key} differs"
            continue
        moved = (x - start[key]).double().norm().item()
        apart = (x - theirs[key]).double().norm().item() / max(moved, 1e-12)
        assert np.isfinite(apart), f"{key} is not finite"
        if apart > worst:
            worst, at = apart, key
    ran = other.learner.executed()
    assert set(ran.values()) == {mode}, f"asked for {mode}, ran {ran}"
    assert worst <= APART[mode], f"`{at}` is {worst:.2e} of its way apart, at most {APART[mode]}"
    return f"{count} updates, at most {worst:.1e} of the way apart"


def num_updates(name: str, device: torch.device) -> int:
    """How many there is time for: of convolutions a core makes two a second."""
    return 4 if name == "ppo-atari" and device.type == "cpu" else NUM_UPDATES


def check_repeats(name: str, device: torch.device) -> str:
    """Eager updates of one seed, twice."""
    from bench.accelerate.rows import ROWS
    from bench.accelerate.updates import make_updates
    from hotloop.learner.state import tensors

    first, second = (make_updates(ROWS[name], "eager", device) for _ in range(2))
    before = {key: x.clone() for key, x in tensors(first.learner.state).items()}
    count = num_updates(name, device)
    for one in (first, second):
        one.make(count)
    after = tensors(first.learner.state)
    for key, x in tensors(second.learner.state).items():
        if device.type == "cpu":
            assert torch.equal(x, after[key]), f"{key} differs"
        else:  # sums of atomics come in any order
            assert torch.allclose(x, after[key], rtol=1e-4, atol=1e-6), f"{key} differs"
    assert any(not torch.equal(x, after[key]) for key, x in before.items()), "nothing was learned"
    return f"{count} updates of one seed are the same"


def check_launches(name: str, device: torch.device) -> str:
    """An update as a graph is one launch, and nothing waits for the device."""
    from bench.accelerate.rows import ROWS
    from bench.accelerate.updates import make_updates
    from hotloop.profiler.session.gpu import use_of

    if device.type != "cuda":
        raise Skipped("no CUDA device")
    updates = make_updates(ROWS[name], "cudagraph", device)
    updates.make(8)  # delayed ones have been captured, too
    torch.cuda.synchronize()
    window = looked_at(lambda: updates.make(64))
    use = use_of([window])
    assert use.num_graphs >= 64, f"{use.num_graphs} launches of graphs for 64 batches"
    return (
        f"{use.num_graphs / 64:.1f} graphs and {use.num_launches / 64:.1f} launches a batch, "
        f"{use.num_kernels / 64:.0f} kernels, {len(use.syncs_ns)} waits"
    )


def looked_at(work: Callable[[], None]) -> Any:
    """Return a window on the GPU in which some work was done again and again."""
    from hotloop.profiler.session.kineto import read_windows
    from hotloop.timing.gpu_window import SUFFIX, GpuWindows

    with tempfile.TemporaryDirectory() as folder:
        device = "cuda" if torch.cuda.is_available() else None
        windows = GpuWindows(Path(folder), "check", length_s=0.3, at_s=(0.0,), device=device)
        windows.start()
        until = time.monotonic() + 60
        while not list(Path(folder).glob(f"*{SUFFIX}")) and time.monotonic() < until:
            work()
            if device is not None:
                torch.cuda.synchronize()
        windows.stop()
        found, problems = read_windows([Path(folder)])
    assert not problems, "; ".join(problems)
    assert found, "no window was written within a minute"
    return found[0]


def check_window(device: torch.device) -> str:
    """The profiler's window: clocks, kernels behind their calls, lines of the host."""
    x = torch.ones(256, 256, device=device)

    def work() -> None:
        for _ in range(200):
            (x @ x).sum()

    window = looked_at(work)
    assert window.error_ns < 1e6, f"clocks agree within {window.error_ns} ns only"
    assert len(window.looks) > 10, f"{len(window.looks)} looks at the host"
    told = f"clocks within {window.error_ns / 1e3:.1f} µs, {len(window.looks)} looks"
    if device.type != "cuda":
        assert not len(window.work)
        return f"{told}; no CUDA device, of the host alone"
    calls = dict(
        zip(window.calls["correlation"].tolist(), window.calls["start_ns"].tolist(), strict=True)
    )
    late = np.array(
        [row["start_ns"] - calls[int(row["correlation"])] for row in window.work
         if int(row["correlation"]) in calls]
    )  # fmt: skip
    assert len(late) > 100, f"{len(window.work)} kernels, {len(late)} of them with a call"
    assert late.min() > -50_000, f"a kernel begins {-late.min() / 1e3:.0f} µs before its call"
    known = np.isin(window.calls["thread"], window.looks["thread"]).mean()
    assert known > 0.5, f"of {1 - known:.0%} of the calls the thread is not known"
    return f"{told}, {len(window.work)} kernels, each {np.median(late) / 1e3:.0f} µs after its call"


def check_replay(device: torch.device) -> str:
    """Rows of a buffer on the device against the arrays that were written to it."""
    from hotloop.replay import DeviceReplay

    capacity, num_envs, rng = 500, 4, np.random.default_rng(3)
    fields = {
        "obs": ((5,), np.float32),
        "action": ((2,), np.float32),
        "reward": ((), np.float32),
        "next_obs": ((5,), np.float32),
        "terminated": ((), np.bool_),
        "truncated": ((), np.bool_),
    }
    buffer = DeviceReplay(
        capacity, fields, device=device, seed=5, num_envs=num_envs, batch_size=256, max_batches=8
    )
    written: dict[str, list[np.ndarray]] = {name: [] for name in fields}
    for _ in range(300):
        rows = {
            name: rng.random((num_envs, *shape)).astype(np.float32)
            if dtype is np.float32
            else np.zeros(num_envs, np.bool_)
            for name, (shape, dtype) in fields.items()
        }
        buffer.extend(**rows)
        for name, array in rows.items():
            written[name].append(array)
    arrays = {name: np.concatenate(parts) for name, parts in written.items()}
    assert len(buffer) == capacity, f"{len(buffer)} of {capacity}"
    numbers = buffer.draw(8).number.cpu().numpy()
    oldest = buffer.num_added - capacity
    assert numbers.min() >= oldest, f"{numbers.min()} is older than {oldest}"
    assert numbers.max() < buffer.num_added, f"{numbers.max()} is not there yet"
    got = buffer.get(numbers.reshape(-1))
    for name in ("obs", "action", "reward", "next_obs"):
        assert np.array_equal(got[name], arrays[name][numbers.reshape(-1)]), f"{name} differs"
    # 2,048 draws in 20 bins: each has 102, with a standard deviation of 10.
    counts = np.histogram(numbers, 20, (oldest, buffer.num_added))[0]
    assert abs(counts - counts.mean()).max() < 6 * np.sqrt(counts.mean()), f"uneven: {counts}"
    return f"{numbers.size:,} rows are as they were written, drawn evenly"


def check_launch(name: str, mode: str, device: torch.device) -> str:
    """Draws, batches and two updates as one launch, against the same eager."""
    from bench.accelerate.rows import ROWS
    from bench.accelerate.updates import make_launches
    from hotloop.learner.state import tensors

    if "cudagraph" in mode and device.type != "cuda":
        raise Skipped("no CUDA device: graphs are of one")
    eager, other = (make_launches(ROWS[name], one, device) for one in ("eager", mode))
    start = {key: x.clone() for key, x in tensors(eager[0].state).items()}
    for _, launches in (eager, other):
        for _ in range(NUM_UPDATES // 2):
            launches.make(2, None)
    after, theirs = (tensors(learner.state) for learner, _ in (eager, other))
    # On a GPU sums of atomics come in any order.
    limit = APART.get(mode, 0.0 if device.type == "cpu" else 1e-3)
    worst = 0.0
    for key, x in after.items():
        if x.is_floating_point():
            moved = (x - start[key]).double().norm().item()
            apart = (x - theirs[key]).double().norm().item() / max(moved, 1e-12)
            assert apart <= limit, f"`{key}` is {apart:.2e} of its way apart"
            worst = max(worst, apart)
    assert any(not torch.equal(x, after[key]) for key, x in start.items()), "nothing was learned"
    return f"{NUM_UPDATES // 2} launches of two updates, at most {worst:.1e} of the way apart"


def check_cartpole(device: torch.device) -> str:
    """CartPole on the device against its equations in float64, step by step."""
    from hotloop.envs.device import make_device_vec

    num_envs, steps, rng = 2048, 200, np.random.default_rng(1)
    envs = make_device_vec("hotloop:CartPole", num_envs, device)
    obs = envs.reset(7)
    ends, apart = 0, 0.0
    for _ in range(steps):
        action = rng.integers(0, 2, num_envs)
        step = envs.step(torch.from_numpy(action).to(device))
        expected, terminated = cartpole_step(obs.double().cpu().numpy(), action)
        got = step.next_obs.double().cpu().numpy()
        apart = max(apart, float(np.abs(got - expected).max()))
        # Where a limit is met but for rounding, either is right.
        edge = (np.abs(np.abs(expected[:, 0]) - 2.4) < 1e-4) | (
            np.abs(np.abs(expected[:, 2]) - np.radians(12)) < 1e-5
        )
        assert np.array_equal(step.terminated.cpu().numpy()[~edge], terminated[~edge])
        ends += int(terminated.sum())
        obs = step.obs
    assert apart < 1e-4, f"{apart:.1e} apart"
    assert ends > num_envs, f"{ends} episodes ended"
    return f"{num_envs:,} × {steps} steps within {apart:.0e}, {ends:,} episodes ended"


def cartpole_step(state: np.ndarray, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Barto, Sutton & Anderson 1983, as Gymnasium integrates it; float64, (N, 4)."""
    x, speed, angle, turn = state.T
    force = np.where(action == 1, 10.0, -10.0)
    cos, sin = np.cos(angle), np.sin(angle)
    push = (force + 0.05 * turn**2 * sin) / 1.1
    swing = (9.8 * sin - cos * push) / (0.5 * (4.0 / 3.0 - 0.1 * cos**2 / 1.1))
    drive = push - 0.05 * swing * cos / 1.1
    after = np.stack(
        [x + 0.02 * speed, speed + 0.02 * drive, angle + 0.02 * turn, turn + 0.02 * swing], -1
    )
    ended = (np.abs(after[:, 0]) > 2.4) | (np.abs(after[:, 2]) > 12 * 2 * np.pi / 360)
    return after, ended


def check_absent(name: str) -> str:
    """What a bare machine lacks."""
    if importlib.util.find_spec(ABSENT[name]) is None:
        raise Skipped(f"`{ABSENT[name]}` is not installed, and trainings with it are not checked")
    raise Skipped("it is here; `python -m bench accelerate` trains with it")


def checks(device: torch.device, *, compiles: bool) -> Iterator[tuple[str, Callable[[], str]]]:
    """All of them, by name."""
    from functools import partial

    from bench.accelerate.rows import MODES, ROWS

    for name in ROWS:
        yield f"{name}: eager repeats", partial(check_repeats, name, device)
        for mode in MODES[1:]:
            if compiles or "compile" not in mode:
                yield f"{name}: {mode} is eager", partial(check_updates, name, mode, device)
        yield f"{name}: launches of a graph", partial(check_launches, name, device)
    for name in ("sac", "td3", "dqn"):
        yield f"{name}: eager launches repeat", partial(check_launch, name, "eager", device)
        yield f"{name}: launches as graphs", partial(check_launch, name, "cudagraph", device)
    yield "window on the GPU", partial(check_window, device)
    yield "replay on the device", partial(check_replay, device)
    yield "CartPole on the device", partial(check_cartpole, device)
    for name in ABSENT:
        yield name, partial(check_absent, name)


def main(arguments: list[str] | None = None) -> int:
    """Run all checks and print what came of each."""
    parser = argparse.ArgumentParser(prog="python -m bench accelerate --check", description=__doc__)
    parser.add_argument("--device", help="default: a GPU where torch sees one")
    parser.add_argument("--only", default="", help="checks whose name has this in it")
    parser.add_argument("--no-compile", action="store_true", help="leave out what is compiled")
    options = parser.parse_args(arguments)
    sys.meta_path.append(StandIns())
    device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    named = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    print(f"Python {platform.python_version()}, torch {torch.__version__}, {device}: {named}")
    counts = dict.fromkeys(("PASS", "FAIL", "SKIP"), 0)
    for name, check in checks(device, compiles=not options.no_compile):
        if options.only not in name:
            continue
        began = time.perf_counter()
        try:
            came, told = "PASS", check()
        except Skipped as why:
            came, told = "SKIP", str(why)
        except Exception as error:
            came, told = "FAIL", f"{type(error).__name__}: {error}"
            traceback.print_exc(limit=-4)
        counts[came] += 1
        took = time.perf_counter() - began
        print(f"{came}  {name}: {told} ({took:.1f} s)", flush=True)
    print(", ".join(f"{count} {came}" for came, count in counts.items()))
    return int(counts["FAIL"] > 0)


if __name__ == "__main__":
    sys.exit(main())
