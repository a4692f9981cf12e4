"""The stage that a sample is in; `python -m bench profiler --part stages` compares with timers."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotloop.profiler.session import Frame, Stack
from hotloop.profiler.session.stages import path_weights, stage_by_key, stage_of, stages
from tests.profiler.programs import record, write
from tests.profiler.sessions import period, process, seen

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
        # The innermost span says it, whatever is known of the functions.
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
        # Logging and configuration are told from within other spans too.
        (("update",), [("main", USER), ("Logger.info", "/usr/lib/python3.11/logging/__init__.py")],
         "logging"),
        (("update",), [("DictConfig.__getattr__", f"{SITE}/omegaconf/dictconfig.py")], "config"),
        ((), [("info", f"{SITE}/absl/logging/__init__.py")], "logging"),
        # A library that steps an environment in a callback of its own is not what is told.
        ((), [("tqdm.update", f"{SITE}/tqdm/std.py"), ("Mine.step", f"{SITE}/gymnasium/core.py")],
         "env"),
        # What a library's files do when they are imported is not what they are for.
        ((), [("_load", "<frozen importlib._bootstrap>"),
              ("<module>", f"{SITE}/torch/optim/adam.py")], "import"),
        ((), [("Connection.recv", "/usr/lib/python3.11/multiprocessing/connection.py")], "wait"),
    ],
)  # fmt: skip
def test_stage_of_a_sample(path, places, stage) -> None:
    assert stage_of(path, stack(*places)) == stage


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


def test_a_loop_in_one_piece(tmp_path: Path) -> None:
    file = write(tmp_path, LOOP, "train.py")
    lines = file.read_text().splitlines()

    def at(text: str) -> str:
        (number,) = [i for i, line in enumerate(lines, 1) if line.strip() == text]
        return f"train ({file}:{number})"

    rows = [
        (seen(at("obs = envs.step(action)"), path="vector_step"), "env"),
        (seen(at("obs = envs.reset()"), path="vector_reset"), "env"),
        (seen(at("loss.backward()"), path="backward"), "update"),
        (seen(at("action = agent(obs)"), FORWARD), "act"),
        (seen(at("loss = agent(obs)"), FORWARD), "update"),
        # Beside both: it stands behind the step.
        (seen(at("value = agent(obs)"), FORWARD), "update"),
        # What the script does itself, and what it calls.
        (seen(at("loss = helper(loss)")), "update"),
        (seen(at("loss = helper(loss)"), f"helper ({file}:4)"), "update"),
        (seen(at("store(obs)")), "other"),
        # Between the last step and learning.
        (seen(at("advantages = gae(value)")), "update"),
        (seen(at("log()")), "logging"),
    ]
    one = process(samples=[row for row, _ in rows])
    found = stage_by_key(one)
    for sample, (_, stage) in zip(one.samples, rows, strict=True):
        stack = one.stacks[sample.stack]
        assert found[sample.path, sample.stack] == stage, lines[stack.lines[0] - 1]


def test_an_action_in_another_form_is_still_one(tmp_path: Path) -> None:
    text = LOOP.replace(
        "action = agent(obs)\n", "action = agent(obs)\n            given = action.cpu().numpy()\n"
    )
    file = write(tmp_path, text.replace("step(action)", "step(given.reshape(-1))"), "train.py")
    lines = file.read_text().splitlines()
    rows = []
    for text, path in (("obs = envs.step(given", "vector_step"), ("action = agent(obs)", "")):
        (number,) = [i for i, line in enumerate(lines, 1) if line.strip().startswith(text)]
        rows.append(seen(f"train ({file}:{number})", *([] if path else ["f (/x.py:1)"]), path=path))
    one = process(samples=rows)
    found = stage_by_key(one)
    stages_found = [found[sample.path, sample.stack] for sample in one.samples]
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
            told = f"{action} of {law}"
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
        ('told = f"{action} of {law}"', "other"),
        ("began = clock()", "other"),
        ("last = value.mean()", "other"),
        ("after = critic(obs)", "other"),
    ],
)
def test_what_is_made_beside_an_action_acts(tmp_path: Path, text: str, stage: str) -> None:
    file = write(tmp_path, BESIDE, "train.py")
    lines = [line.strip() for line in file.read_text().splitlines()]
    number = lines.index("obs = envs.step(action)") + 1
    rows = [
        seen(f"train ({file}:{number})", path="vector_step"),
        seen(f"train ({file}:{lines.index(text) + 1})"),
    ]
    one = process(samples=rows)
    found = stage_by_key(one)
    assert [found[sample.path, sample.stack] for sample in one.samples] == ["env", stage]


def test_functions_that_do_one_thing(tmp_path: Path) -> None:
    file = str(write(tmp_path, "pass\n", "agent.py"))
    rows = [
        (seen(f"main ({file}:9)", f"collect ({file}:20)", path="env_step"), "env"),
        (seen(f"main ({file}:10)", f"learn ({file}:40)", path="backward"), "update"),
        (seen(f"main ({file}:9)", f"collect ({file}:19)", FORWARD), "act"),
        (seen(f"main ({file}:10)", f"learn ({file}:38)", f"Net.forward ({file}:70)", FORWARD),
         "update"),
        (seen(f"main ({file}:10)", f"learn ({file}:39)"), "update"),
        (seen(f"main ({file}:9)", f"collect ({file}:21)"), "other"),
    ]  # fmt: skip
    one = process(samples=[row for row, _ in rows])
    found = stage_by_key(one)
    # The source can't say more: its lines are not those.
    assert [found[sample.path, sample.stack] for sample in one.samples] == [
        stage for _, stage in rows
    ]


def test_samples_stand_for_the_time_of_their_spans() -> None:
    """The sampler saw `act` for 6 s of 10, `env_step` for 2, its own lines for 2."""
    one = process(
        samples=[
            seen("main (/home/x.py:1)", path="act", elapsed_s=6.0, on_core_s=3.0),
            seen("main (/home/x.py:2)", path="env_step", elapsed_s=2.0, on_core_s=2.0),
            seen("main (/home/x.py:3)", elapsed_s=2.0),
        ],
        periods=[period(10.0, spans={"act": (100, 3.0), "env_step": (100, 4.0)})],
    )
    assert path_weights(one, one.pid) == pytest.approx({("act",): 0.5, ("env_step",): 2.0, (): 1.5})
    found = stages(one)
    assert found.share("act") == pytest.approx(0.3)
    assert found.share("env") == pytest.approx(0.4)
    assert found.share("other") == pytest.approx(0.3)
    assert found.total.elapsed_ns == 10_000_000_000
    assert found.by_stage["act"].on_core_ns == 1_500_000_000


def test_time_in_inner_spans_is_not_the_outer_ones() -> None:
    one = process(
        samples=[
            seen("main (/home/x.py:1)", path="collect", elapsed_s=1.0),
            seen("main (/home/x.py:1)", path="collect > env_step", elapsed_s=1.0),
        ],
        periods=[period(2.0, spans={"collect": (1, 2.0), "collect > env_step": (9, 1.5)})],
    )
    assert path_weights(one, one.pid) == pytest.approx(
        {("collect",): 0.5, ("collect", "env_step"): 1.5}
    )
    # Without spans by period there is nothing to go by.
    one.periods = []
    assert path_weights(one, one.pid) == {}


def test_spans_that_no_sample_was_taken_in_have_their_time() -> None:
    """As a hundred thousand short ones may be, between operations that release Python's lock."""
    one = process(
        samples=[seen("main (/home/x.py:1)", elapsed_s=10.0, on_core_s=10.0)],
        periods=[period(10.0, spans={"env_step": (10**5, 4.0), "env_step > inner": (9, 1.0)})],
    )
    found = stages(one)
    assert found.share("env") == pytest.approx(0.4)
    assert found.share("other") == pytest.approx(0.6)
    assert found.total.elapsed_ns == 10_000_000_000
    # Without samples there is nothing to be told of.
    one.samples = []
    assert stages(one).total.elapsed_ns == 0


def test_a_script_in_one_piece(tmp_path: Path) -> None:
    script = Path(__file__).parents[3] / "bench" / "profiler" / "staged" / "ppo.py"
    done, session = record(tmp_path, str(script), "CartPole-v1", "3", str(tmp_path / "times.json"))
    assert done.returncode == 0, done.stderr
    found = stages(session.main)
    assert min(found.share(stage) for stage in ("env", "act", "update")) > 0
    assert found.share("replay") < min(found.share("act"), found.share("update"))
