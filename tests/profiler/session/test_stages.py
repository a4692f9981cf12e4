"""Stages of samples. `python -m bench profiler --part stages` compares them with timers."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotloop.profiler.session import Frame, Stack
from hotloop.profiler.session.stages import path_weights, sample_stage, stage_by_key, stage_times
from tests.profiler.programs import recordings, write
from tests.profiler.sessions import period, process, sample, with_first_lines

SITE = "/x/lib/python3.11/site-packages"
USER = "/home/rich/absl/train.py"


def stack(*places: tuple[str, str]) -> Stack:
    return Stack(tuple(Frame(function, file, 1) for function, file in places), (1,) * len(places))


@pytest.mark.parametrize(
    ("path", "places", "stage"),
    [
        ((), [("main", USER)], "other"),
        (("collect", "env_step"), [("main", USER)], "env"),
        (("update", "replay_sample"), [("main", USER)], "replay"),
        (("collect",), [("main", USER)], "other"),
        # The innermost span decides, whatever the functions are.
        (("update",), [("Linear.forward", f"{SITE}/torch/nn/modules/linear.py")], "update"),
        ((), [("Linear.forward", f"{SITE}/torch/nn/modules/linear.py")], "forward"),
        ((), [("Tensor.backward", f"{SITE}/torch/_tensor.py")], "update"),
        ((), [("_engine_run_backward", f"{SITE}/torch/autograd/graph.py")], "update"),
        ((), [("Adam.step", f"{SITE}/torch/optim/adam.py")], "update"),
        # `no_grad` is around acting.
        ((), [("no_grad.__enter__", f"{SITE}/torch/autograd/grad_mode.py")], "other"),
        ((), [("CartPoleEnv.step", f"{SITE}/gymnasium/envs/classic_control/cartpole.py")], "env"),
        ((), [("ReplayBuffer.sample", USER)], "replay"),
        ((), [("PrioritizedReplayMemory._sample_proportional", USER)], "replay"),
        ((), [("MemoryCell.forward", USER)], "other"),
        # Logging and configuration are detected within other spans too.
        (("update",), [("main", USER), ("Logger.info", "/usr/lib/python3.11/logging/__init__.py")],
         "logging"),
        (("update",), [("DictConfig.__getattr__", f"{SITE}/omegaconf/dictconfig.py")], "config"),
        ((), [("info", f"{SITE}/absl/logging/__init__.py")], "logging"),
        # The environment counts, not the library whose callback steps it.
        ((), [("tqdm.update", f"{SITE}/tqdm/std.py"), ("Mine.step", f"{SITE}/gymnasium/core.py")],
         "env"),
        # Files of a library that are being imported count as imports.
        ((), [("_load", "<frozen importlib._bootstrap>"),
              ("<module>", f"{SITE}/torch/optim/adam.py")], "import"),
        ((), [("Connection.recv", "/usr/lib/python3.11/multiprocessing/connection.py")], "wait"),
    ],
)  # fmt: skip
def test_stage_of_a_sample(path, places, stage) -> None:
    assert sample_stage(path, stack(*places)) == stage


LOOP = """
import gymnasium as gym

def helper(x):
    return x

def train():
    obs = envs.reset()
    for iteration in range(10):
        for step in range(128):
            action = agent(obs)
            obs = envs.step(action)
            store(obs)
        value = agent(obs)
        advantages = gae(value)
        for epoch in range(4):
            loss = agent(obs)
            loss = helper(loss)
            loss.backward()
        log()
"""
FORWARD = f"Linear.forward ({SITE}/torch/nn/modules/linear.py:9)"


def test_stages_of_a_loop_in_one_function(tmp_path: Path) -> None:
    file = write(tmp_path, LOOP, "train.py")
    lines = file.read_text().splitlines()

    def at(text: str) -> str:
        (number,) = [i for i, line in enumerate(lines, 1) if line.strip() == text]
        return f"train ({file}:{number})"

    rows = [
        (sample(at("obs = envs.step(action)"), path="vector_step"), "env"),
        (sample(at("obs = envs.reset()"), path="vector_reset"), "env"),
        (sample(at("loss.backward()"), path="backward"), "update"),
        (sample(at("action = agent(obs)"), FORWARD), "act"),
        (sample(at("loss = agent(obs)"), FORWARD), "update"),
        # Outside both inner loops, but after the steps.
        (sample(at("value = agent(obs)"), FORWARD), "update"),
        # Lines of the script itself and their calls.
        (sample(at("loss = helper(loss)")), "update"),
        (sample(at("loss = helper(loss)"), f"helper ({file}:4)"), "update"),
        (sample(at("store(obs)")), "other"),
        # Between the last step and learning.
        (sample(at("advantages = gae(value)")), "update"),
        (sample(at("log()")), "logging"),
    ]
    main = process(samples=[row for row, _ in rows])
    stages = stage_by_key(main)
    for recorded, (_, stage) in zip(main.samples, rows, strict=True):
        stack = main.stacks[recorded.stack]
        assert stages[recorded.path, recorded.stack] == stage, lines[stack.lines[0] - 1]


def test_a_converted_action_counts_as_acting(tmp_path: Path) -> None:
    text = LOOP.replace(
        "action = agent(obs)\n", "action = agent(obs)\n            array = action.cpu().numpy()\n"
    )
    file = write(tmp_path, text.replace("step(action)", "step(array.reshape(-1))"), "train.py")
    lines = file.read_text().splitlines()
    rows = []
    for text, path in (("obs = envs.step(array", "vector_step"), ("action = agent(obs)", "")):
        (number,) = [i for i, line in enumerate(lines, 1) if line.strip().startswith(text)]
        rows.append(
            sample(f"train ({file}:{number})", *([] if path else ["f (/x.py:1)"]), path=path)
        )
    main = process(samples=rows)
    stages = stage_by_key(main)
    stages_found = [stages[sample.path, sample.stack] for sample in main.samples]
    assert stages_found == ["env", "act"]


BESIDE = """
def train():
    for iteration in range(10):
        for step in range(128):
            with torch.no_grad():
                hidden = body(obs)
                law = head(hidden)
                action = law.sample()
                log_prob = law.log_prob(action)
                value = critic(hidden).flatten()
            label = f"{action} of {law}"
            began = clock()
            obs = envs.step(action)
            last = value.mean()
        with torch.no_grad():
            after = critic(obs)
"""


@pytest.mark.parametrize(
    ("text", "stage"),
    [
        ("with torch.no_grad():", "act"),
        ("hidden = body(obs)", "act"),
        ("log_prob = law.log_prob(action)", "act"),
        ("value = critic(hidden).flatten()", "act"),
        ('label = f"{action} of {law}"', "other"),
        ("began = clock()", "other"),
        ("last = value.mean()", "other"),
        ("after = critic(obs)", "other"),
    ],
)
def test_values_computed_with_an_action_count_as_acting(
    tmp_path: Path, text: str, stage: str
) -> None:
    file = write(tmp_path, BESIDE, "train.py")
    lines = [line.strip() for line in file.read_text().splitlines()]
    number = lines.index("obs = envs.step(action)") + 1
    rows = [
        sample(f"train ({file}:{number})", path="vector_step"),
        sample(f"train ({file}:{lines.index(text) + 1})"),
    ]
    main = process(samples=rows)
    stages = stage_by_key(main)
    assert [stages[sample.path, sample.stack] for sample in main.samples] == ["env", stage]


def test_functions_with_a_single_stage(tmp_path: Path) -> None:
    file = str(write(tmp_path, "pass\n", "agent.py"))
    rows = [
        (sample(f"main ({file}:9)", f"collect ({file}:20)", path="env_step"), "env"),
        (sample(f"main ({file}:10)", f"learn ({file}:40)", path="backward"), "update"),
        (sample(f"main ({file}:9)", f"collect ({file}:19)", FORWARD), "act"),
        (sample(f"main ({file}:10)", f"learn ({file}:38)", f"Net.forward ({file}:70)", FORWARD),
         "update"),
        (sample(f"main ({file}:10)", f"learn ({file}:39)"), "update"),
        (sample(f"main ({file}:9)", f"collect ({file}:21)"), "other"),
    ]  # fmt: skip
    main = process(samples=[row for row, _ in rows])
    stages = stage_by_key(main)
    # The source has other lines, so that it adds no information.
    assert [stages[sample.path, sample.stack] for sample in main.samples] == [
        stage for _, stage in rows
    ]


def test_samples_are_weighted_by_span_times() -> None:
    """The samples have 6 s of `act`, 2 s of `env_step` and 2 s outside spans."""
    main = process(
        samples=[
            sample("main (/home/x.py:1)", path="act", elapsed_s=6.0, on_core_s=3.0),
            sample("main (/home/x.py:2)", path="env_step", elapsed_s=2.0, on_core_s=2.0),
            sample("main (/home/x.py:3)", elapsed_s=2.0),
        ],
        periods=[period(10.0, spans={"act": (100, 3.0), "env_step": (100, 4.0)})],
    )
    assert path_weights(main, main.pid) == pytest.approx(
        {("act",): 0.5, ("env_step",): 2.0, (): 1.5}
    )
    times = stage_times(main)
    assert times.share("act") == pytest.approx(0.3)
    assert times.share("env") == pytest.approx(0.4)
    assert times.share("other") == pytest.approx(0.3)
    assert times.total.elapsed_ns == 10_000_000_000
    assert times.by_stage["act"].on_core_ns == 1_500_000_000


def test_time_of_inner_spans_is_subtracted() -> None:
    main = process(
        samples=[
            sample("main (/home/x.py:1)", path="collect", elapsed_s=1.0),
            sample("main (/home/x.py:1)", path="collect > env_step", elapsed_s=1.0),
        ],
        periods=[period(2.0, spans={"collect": (1, 2.0), "collect > env_step": (9, 1.5)})],
    )
    assert path_weights(main, main.pid) == pytest.approx(
        {("collect",): 0.5, ("collect", "env_step"): 1.5}
    )
    # Without spans by period there are no weights.
    main.periods = []
    assert path_weights(main, main.pid) == {}


def test_spans_without_samples_have_time() -> None:
    """A hundred thousand short spans may have no samples if no operation releases the GIL."""
    main = process(
        samples=[sample("main (/home/x.py:1)", elapsed_s=10.0, on_core_s=10.0)],
        periods=[period(10.0, spans={"env_step": (10**5, 4.0), "env_step > inner": (9, 1.0)})],
    )
    times = stage_times(main)
    assert times.share("env") == pytest.approx(0.4)
    assert times.share("other") == pytest.approx(0.6)
    assert times.total.elapsed_ns == 10_000_000_000
    # Without samples there are no times.
    main.samples = []
    assert stage_times(main).total.elapsed_ns == 0


@pytest.mark.slow
def test_stages_of_a_single_file_script(tmp_path: Path) -> None:
    script = Path(__file__).parents[3] / "bench" / "profiler" / "staged" / "ppo.py"
    target = (str(script), "CartPole-v1", "3", str(tmp_path / "times.json"))
    for result, session, attempt in recordings(tmp_path, *target):
        assert result.returncode == 0, result.stderr
        times = stage_times(session.main)
        with attempt:
            assert min(times.share(stage) for stage in ("env", "act", "update")) > 0
            assert times.share("replay") < min(times.share("act"), times.share("update"))


BY_HAND = """
class Maze:
    def reset(self):
        self.position = 0
        return self.position

    def step(self, action):
        self.position = self.move(action)
        return self.position, 1.0, False

    def move(self, action):
        return self.position + action


class Agent:
    def reset(self):
        self.noise = 0.0

    def step(self, state, action, reward, next_state, done):
        self.learn(reward)
        return self.noise


class Policy:
    def reset(self):
        self.hidden = 0.0

    def step(self, obs):
        return self.hidden


for iteration in range(10):
    for step in range(128):
        logits = net(obs)
        obs, reward, done = env.step(action)
        agent.step(obs, action, reward, obs, done)
        policy.step(obs)
    loss = net(obs)
    loss.backward()
"""


def test_environments_without_a_base_class(tmp_path: Path) -> None:
    """The forward pass before their step acts, although no span or library shows the step."""
    file = write(tmp_path, BY_HAND, "train.py")
    lines = file.read_text().splitlines()

    def at(function: str, text: str) -> str:
        (number,) = [i for i, line in enumerate(lines, 1) if line.strip() == text]
        return f"{function} ({file}:{number})"

    step = at("<module>", "obs, reward, done = env.step(action)")
    backward = at("<module>", "loss.backward()")
    rows = [
        (sample(step, at("Maze.step", "self.position = self.move(action)")), "env"),
        (
            sample(
                step,
                at("Maze.step", "self.position = self.move(action)"),
                at("Maze.move", "return self.position + action"),
            ),
            "env",
        ),
        (sample(at("<module>", "logits = net(obs)"), FORWARD), "act"),
        (sample(at("<module>", "loss = net(obs)"), FORWARD), "update"),
        (sample(backward, f"Tensor.backward ({SITE}/torch/_tensor.py:9)"), "update"),
        (
            sample(
                at("<module>", "agent.step(obs, action, reward, obs, done)"),
                at("Agent.step", "self.learn(reward)"),
            ),
            "other",
        ),
        (
            sample(at("<module>", "policy.step(obs)"), at("Policy.step", "return self.hidden")),
            "other",
        ),
    ]
    main = process(samples=[row for row, _ in rows])
    first_lines = {
        name: lines.index(line) + 1
        for name, line in (
            ("Maze.step", "    def step(self, action):"),
            ("Agent.step", "    def step(self, state, action, reward, next_state, done):"),
            ("Policy.step", "    def step(self, obs):"),
        )
    }
    with_first_lines(main, first_lines)
    stages = stage_by_key(main, by_name=False)
    found = [stages[recorded.path, recorded.stack] for recorded in main.samples]
    assert found == [stage for _, stage in rows]
