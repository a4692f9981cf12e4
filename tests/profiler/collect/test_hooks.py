"""Hooked functions of libraries have spans and are otherwise unchanged."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import io
import pickle
import sys
import threading
import traceback
from typing import Any

import pytest

from hotloop import timing
from hotloop.profiler.collect.hooks import wrapping
from hotloop.profiler.collect.hooks.wrapping import with_span, wrap, wrap_subclasses
from tests.profiler.programs import record, run, spans, write

needs_gymnasium = pytest.mark.skipif(
    importlib.util.find_spec("gymnasium") is None, reason="gymnasium is not installed"
)
needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed"
)
needs_sb3 = pytest.mark.skipif(
    importlib.util.find_spec("stable_baselines3") is None,
    reason="stable-baselines3 is not installed",
)


class Thing:
    """A class like those of a library."""

    def __init__(self, value: int = 1) -> None:
        self.value = value

    def step(self, action: int, *, scale: float = 2.0) -> float:
        """Take a step."""
        return self.value * action * scale

    def fail(self) -> None:
        """Raise."""
        raise KeyError("inside")

    @staticmethod
    def static() -> int:
        return 3


ORIGINAL = Thing.step
wrap(Thing, "step", "thing_step")
wrap(Thing, "fail", "thing_fail")
wrap(Thing, "static", "never")
wrap(Thing, "missing", "never")


@pytest.fixture(autouse=True)
def clean_recording():
    timing.stop()


def paths() -> dict[tuple[str, ...], int]:
    return {path: node.count for path, node in timing.current().tree().walk()}


# --- wrapping -------------------------------------------------------------------------------------


def test_a_wrapped_function_looks_unchanged() -> None:
    assert Thing.step is not ORIGINAL
    assert Thing.step.__name__ == "step"
    assert Thing.step.__qualname__ == "Thing.step"
    assert Thing.step.__doc__ == "Take a step."
    assert Thing.step.__module__ == __name__
    assert inspect.signature(Thing.step) == inspect.signature(ORIGINAL)
    assert inspect.signature(Thing().step) == inspect.signature(ORIGINAL.__get__(Thing()))
    assert inspect.getfullargspec(Thing.step) == inspect.getfullargspec(ORIGINAL)
    assert inspect.getsource(Thing.step) == inspect.getsource(ORIGINAL)
    assert inspect.isfunction(Thing.step)
    assert Thing.step.__kwdefaults__ is None or Thing.step.__kwdefaults__ == {"scale": 2.0}
    assert Thing.static() == 3
    assert not hasattr(Thing, "missing")


def test_instances_can_be_pickled() -> None:
    copy = pickle.loads(pickle.dumps(Thing(5)))
    assert copy.step(2, scale=1.0) == 10
    step = pickle.loads(pickle.dumps(Thing(5).step))
    assert step(1) == 10.0
    assert pickle.loads(pickle.dumps(Thing.step)) is Thing.step


def test_classes_of_a_script_can_be_pickled_by_value() -> None:
    """SubprocVecEnv pickles environments by value if the script defines them."""
    cloudpickle = pytest.importorskip("cloudpickle")

    class ScriptClass:
        def step(self) -> int:
            return 4

        def more(self) -> int:
            return super().__hash__() * 0 + self.step()

    wrap(ScriptClass, "step", "script_step", before=print_nothing)
    wrap(ScriptClass, "more", "script_more")
    for module in (__name__, "__main__"):
        ScriptClass.__module__ = module
        ScriptClass.step.__module__ = module
        text = cloudpickle.dumps(ScriptClass())
        assert cloudpickle.loads(text).more() == 4
    assert paths()["script_more",] >= 1


def print_nothing(*_: Any) -> None:
    """A module-level function, which is pickled by name."""


def test_only_the_outermost_call_is_a_span() -> None:
    class Outer:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def step(self) -> int:
            return 1 + (self.inner.step() if self.inner else 0)

    wrap(Outer, "step", "outer_step")
    assert Outer(Outer(Outer(None))).step() == 3
    assert Outer(None).step() == 1
    assert paths() == {("outer_step",): 2}

    results: list[int] = []

    def in_thread() -> None:
        results.append(Outer(None).step())

    class Starting(Outer):
        def step(self) -> int:
            thread = threading.Thread(target=in_thread)
            thread.start()
            thread.join()
            return 0

    wrap(Starting, "step", "outer_step")
    Starting(None).step()
    # The span of this thread does not contain the other thread.
    assert results == [1]
    assert paths() == {("outer_step",): 4}


def test_exceptions_pass_without_hotloop_frames() -> None:
    with pytest.raises(KeyError) as caught:
        Thing().fail()
    assert paths() == {("thing_fail",): 1}
    files = [entry.filename for entry in traceback.extract_tb(caught.value.__traceback__)]
    if sys.version_info >= (3, 11):
        assert wrapping.__file__ not in files
    assert files[0] == files[-1] == __file__
    with pytest.raises(KeyError):
        Thing().fail()
    assert paths() == {("thing_fail",): 2}


def test_the_second_wrapping_has_no_effect() -> None:
    def work() -> None:
        pass

    module = sys.modules[__name__]
    vars(module)["some_work"] = work
    wrap(module, "some_work", "a")
    wrap(module, "some_work", "b")
    vars(module)["some_work"]()
    assert paths() == {("a",): 1}


def test_existing_and_future_subclasses_are_wrapped() -> None:
    subclasses: list[tuple[str, Any]] = []

    class Base:
        def __init_subclass__(cls, tag: str = "", **kwargs: Any) -> None:
            super().__init_subclass__(**kwargs)
            subclasses.append((cls.__name__, tag))

        def step(self) -> str:
            return "base"

    class Early(Base, tag="x"):
        def step(self) -> str:
            return "early"

    wrap_subclasses(Base, {"step": "a_step"})

    class Late(Early, tag="y"):
        def step(self) -> str:
            return super().step() + " late"

    class Without(Base):
        pass

    assert subclasses == [("Early", "x"), ("Late", "y"), ("Without", "")]
    assert [cls().step() for cls in (Base, Early, Late, Without)] == [
        "base", "early", "early late", "base",
    ]  # fmt: skip
    assert paths() == {("a_step",): 4}

    class Plain:
        def step(self) -> int:
            return 1

    wrap_subclasses(Plain, {"step": "plain_step"})

    class Child(Plain):
        def step(self) -> int:
            return 2

    assert Child().step() == 2
    assert paths()["plain_step",] == 1
    with pytest.raises(TypeError, match="takes no keyword arguments"):
        type("Wrong", (Plain,), {}, tag="z")


def test_span_kinds_and_callbacks_before_calls() -> None:
    calls: list[tuple[Any, ...]] = []
    wait = with_span(lambda x: x + 1, "w", "wait", before=lambda *args: calls.append(args))
    assert wait(1) == 2
    assert calls == [(1,)]
    assert timing.current().tree().find("w").kind == "wait"


# --- libraries ------------------------------------------------------------------------------------

GYMNASIUM = """
import inspect, pickle
import gymnasium as gym
import numpy as np
from gymnasium.wrappers import TimeLimit


class CustomEnv(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.random(2, np.float32), {}

    def step(self, action):
        "One step."
        return self.np_random.random(2, np.float32), float(action), False, False, {}


env = TimeLimit(CustomEnv(), 5)
total = env.reset(seed=1)[0].sum()
for _ in range(7):
    obs, reward, *_ = env.step(1)
    total += obs.sum()
envs = gym.vector.SyncVectorEnv([CustomEnv, CustomEnv, CustomEnv])
envs.reset(seed=2)
for _ in range(4):
    obs, *_ = envs.step(np.array([0, 1, 0]))
    total += obs.sum()
again = pickle.loads(pickle.dumps(env))
print(repr(float(total)), inspect.signature(CustomEnv.step), CustomEnv.step.__doc__)
print(inspect.getsource(CustomEnv.step))
print(inspect.signature(gym.Env.step), inspect.getfullargspec(TimeLimit.step))
print(CustomEnv.__mro__, type(again).__name__, sorted(vars(env)))
"""


@needs_gymnasium
def test_gymnasium(tmp_path) -> None:
    script = write(tmp_path, GYMNASIUM)
    result, session = record(tmp_path, str(script))
    assert result.stderr == ""
    tree = session.main.tree
    assert tree.find("env_step").count == 7
    assert tree.find("env_reset").count == 1
    assert tree.find("vector_step").count == 4
    assert tree.find("vector_step", "env_step").count == 12
    assert tree.find("vector_reset", "env_reset").count == 3
    assert not any(path[-2:] == ("env_step", "env_step") for path, _ in tree.walk())
    assert session.main.facts["num_envs"] == 3
    bare = run([sys.executable, str(script)], tmp_path)
    assert bare.stdout == result.stdout


TORCH = """
import sys
import torch

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
sgd = torch.optim.SGD(net.parameters(), lr=1e-3)
for _ in range(5):
    loss = net(torch.randn(16, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
sgd.step()
grad, = torch.autograd.grad(net(torch.ones(4)).sum(), [net[0].weight])
bits = b"".join(p.detach().numpy().tobytes() for p in net.parameters())
import hashlib, inspect
print(hashlib.sha256(bits + grad.numpy().tobytes()).hexdigest())
print(inspect.signature(torch.autograd.backward), torch.autograd.backward.__module__)
print(inspect.getsource(torch.autograd.backward)[:40])
"""


@needs_torch
def test_torch(tmp_path) -> None:
    script = write(tmp_path, TORCH)
    result, session = record(tmp_path, str(script))
    assert result.stderr == ""
    tree = session.main.tree
    assert tree.find("backward").count == 6
    assert tree.find("optimizer_step").count == 6
    assert session.main.facts["torch_threads"] >= 1
    with contextlib.redirect_stdout(io.StringIO()) as bare:
        exec(TORCH, {})
    assert bare.getvalue() == result.stdout


FAILED_STEPS = """
import time, torch

weights = torch.nn.Parameter(torch.zeros(3))
weights.grad = torch.ones(3)
sgd = torch.optim.SGD([weights], lr=0.1)

def fail():
    raise ValueError

class Twice(torch.optim.SGD):
    def step(self, closure=None):
        sgd.step()
        super().step(closure)

for optimizer in (sgd, Twice([weights], lr=0.1)):
    try:
        optimizer.step(fail)
    except ValueError:
        pass
    time.sleep(0.01)
    optimizer.step()
time.sleep(0.5)
"""


@needs_torch
def test_steps_that_fail_or_call_others_are_single_spans(tmp_path) -> None:
    _, session = record(tmp_path, str(write(tmp_path, FAILED_STEPS)))
    tree = session.main.tree
    assert [path for path, _ in tree.walk() if "optimizer_step" in path] == [("optimizer_step",)]
    assert (tree.find("optimizer_step").count, tree.find("optimizer_step").open) == (4, 0)
    assert tree.find("optimizer_step").total_ns < 0.4e9


COMPILED = """
import torch

net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, foreach=False)


class Policy:
    def forward(self, x):
        return net(x) * 2


import sys

if "hotloop.profiler.collect.processes" in sys.modules:
    from hotloop.profiler.collect.hooks.wrapping import wrap

    wrap(Policy, "forward", "act")
policy = Policy()
net(torch.ones(1, 3)).sum().backward()
acting = torch.compile(lambda x: policy.forward(x) + 1, backend="eager", fullgraph=True)
learning = torch.compile(lambda: optimizer.step(), backend="eager")
for _ in range(3):
    print(acting(torch.ones(2, 3)).shape)
    learning()
# torch breaks the graphs of its own optimizers. Spans must add no graph break.
from torch._dynamo.utils import counters
print(sum(counters["graph_break"].values()), counters["stats"]["unique_graphs"])
"""


@needs_torch
@pytest.mark.slow
def test_compiled_code_has_no_spans(tmp_path) -> None:
    """A span in compiled code would break its graph, and `fullgraph` would raise."""
    result, session = record(tmp_path, str(write(tmp_path, COMPILED)))
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("torch.Size([2, 1])\n" * 3)
    bare = run([sys.executable, str(tmp_path / "script.py")], tmp_path)
    assert bare.stdout == result.stdout
    assert "act" not in {path[-1] for path, _ in session.main.tree.walk()}


SB3 = """
import sys
import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv

if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "ppo":
        envs = make_vec_env("CartPole-v1", n_envs=3, seed=1)
        model = PPO("MlpPolicy", envs, n_steps=32, batch_size=48, n_epochs=2, seed=1, verbose=1)
        model.learn(3 * 32 * 2)
    else:
        model = SAC("MlpPolicy", "Pendulum-v1", learning_starts=50, batch_size=16, seed=1,
                    policy_kwargs={"net_arch": [16]})
        model.learn(70)
    import hashlib
    bits = b"".join(p.detach().numpy().tobytes() for p in model.policy.parameters())
    print(hashlib.sha256(bits).hexdigest())
"""


@needs_sb3
@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ppo", "sac"])
def test_stable_baselines3(tmp_path, algorithm: str) -> None:
    script = write(tmp_path, SB3)
    result, session = record(tmp_path, str(script), algorithm)
    assert result.returncode == 0, result.stderr
    tree = session.main.tree
    if algorithm == "ppo":
        assert tree.find("collect").count == 2
        assert tree.find("update").count == 2
        assert tree.find("collect", "act").count == 2 * 32
        assert tree.find("collect", "vector_step").count == 2 * 32
        assert tree.find("collect", "vector_step", "env_step").count == 3 * 2 * 32
        # Two epochs of two minibatches.
        assert tree.find("update", "optimizer_step").count == 8
        assert tree.find("update", "backward").count == 8
        assert tree.find("collect", "replay_add").count == 2 * 32
        assert tree.find("logging").count == 2
        assert session.main.facts["num_envs"] == 3
    else:
        updates = 70 - 50
        assert tree.find("update", "replay_sample").count == updates
        assert tree.find("collect", "act").count >= updates
        assert tree.find("collect", "replay_add").count == 70
        assert tree.find("update", "optimizer_step").count == 3 * updates
    assert session.main.facts["torch_threads"] == 1
    assert ("set_up", "vector_reset") in spans(session, "main")
    # The weights are bitwise the same.
    bare = run([sys.executable, str(script), algorithm], tmp_path)
    assert bare.stdout.splitlines()[-1] == result.stdout.splitlines()[-1]


OWN_ENVIRONMENT = """
import gymnasium as gym
import numpy as np
from stable_baselines3.common.vec_env import SubprocVecEnv


class CustomEnv(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.full(2, action, np.float32), 1.0, False, False, {}


if __name__ == "__main__":
    import sys
    envs = SubprocVecEnv([CustomEnv, lambda: CustomEnv()], start_method=sys.argv[1])
    envs.reset()
    for _ in range(10):
        obs, *_ = envs.step(np.array([0, 1]))
    print(obs.tolist())
    envs.close()
"""


@needs_sb3
@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_with_environments_of_the_script(tmp_path, method: str) -> None:
    script = write(tmp_path, OWN_ENVIRONMENT)
    result, session = record(tmp_path, str(script), method)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "[[0.0, 0.0], [1.0, 1.0]]\n"
    assert len(session.workers) == 2
    for worker in session.workers:
        assert worker.tree.find("env_step").count == 10
        assert worker.state == "complete"
    assert session.main.tree.find("vector_step").count == 10


def test_a_library_without_the_hooked_functions(tmp_path) -> None:
    """The program and the other hooks run even if a library lacks the hooked functions."""
    package = tmp_path / "gymnasium"
    package.mkdir()
    (package / "__init__.py").write_text("from gymnasium import core\n")
    (package / "core.py").write_text("VALUE = 5\n")
    script = write(
        tmp_path,
        """
        import gymnasium
        print(gymnasium.core.VALUE)
        """,
    )
    result, _ = record(tmp_path, str(script))
    assert (result.returncode, result.stdout, result.stderr) == (0, "5\n", "")


def test_a_library_with_other_classes_is_reported(tmp_path) -> None:
    """The script runs normally, and the report names the missing spans."""
    package = tmp_path / "stable_baselines3" / "common"
    package.mkdir(parents=True)
    for name in ("../__init__.py", "__init__.py", "buffers.py"):
        (package / name).write_text("class Buffer: pass\n")
    text = "import stable_baselines3.common.buffers, time; time.sleep(0.1); print('done')"
    result, session = record(tmp_path, str(write(tmp_path, text)))
    assert (result.stdout, result.stderr) == ("done\n", "")
    (problem,) = session.problems
    assert "stable_baselines3.common.buffers" in problem
    assert "BaseBuffer" in problem
