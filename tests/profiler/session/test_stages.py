"""The stage that a sample is in: by hand, and against timers placed by hand in real scripts."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from hotloop.profiler.session import Frame, Stack
from hotloop.profiler.session.stages import Share, path_weights, stage_by_key, stage_of, stages
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


# --- against timers placed by hand ----------------------------------------------------------------

TIMERS = """
import atexit, json, sys, time

_spent, _open = {}, []


class timer:
    "Wall time in a stage, without what is another one's within it."

    def __init__(self, stage):
        self.stage = stage

    def __enter__(self):
        now = time.perf_counter()
        if _open:
            _spent[_open[-1][0]] = _spent.get(_open[-1][0], 0.0) + now - _open[-1][1]
        _open.append([self.stage, now])

    def __exit__(self, *_):
        now = time.perf_counter()
        stage, since = _open.pop()
        _spent[stage] = _spent.get(stage, 0.0) + now - since
        if _open:
            _open[-1][1] = now


def timed(owner, name, stage):
    function = getattr(owner, name)

    def call(*args, **kwargs):
        with timer(stage):
            return function(*args, **kwargs)

    setattr(owner, name, call)


_began = time.perf_counter()


@atexit.register
def _tell():
    with open("timers.json", "w") as file:
        json.dump({**_spent, "whole": time.perf_counter() - _began}, file)
"""

SB3 = (
    TIMERS
    + """
import gymnasium as gym
import torch
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv


def measure(model):
    # In the instances, around what the profiler has wrapped in their classes.
    timed(model, "train", "update")
    timed(model.env, "step", "env")
    if model.replay_buffer if hasattr(model, "replay_buffer") else False:
        timed(model.replay_buffer, "sample", "replay")
        timed(model.replay_buffer, "add", "replay")
        timed(model.policy, "predict", "act")
    else:
        timed(model.rollout_buffer, "add", "replay")
        timed(model.policy, "forward", "act")


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "sac":
        env = gym.make("Pendulum-v1")
        model = SAC("MlpPolicy", env, verbose=0)
        measure(model)
        model.learn(total_timesteps=900, log_interval=4)
    else:
        vec_env = make_vec_env(
            "CartPole-v1",
            n_envs=4,
            vec_env_cls={"dummy": DummyVecEnv, "subproc": SubprocVecEnv}[sys.argv[1]],
        )
        model = PPO("MlpPolicy", vec_env, verbose=0, n_steps=512)
        measure(model)
        model.learn(total_timesteps=int(sys.argv[2]))
        obs = vec_env.reset()
        vec_env.close()
"""
)

SINGLE_FILE = (
    TIMERS
    + """
# A training loop in one piece.
import random
import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim
from torch.distributions.categorical import Categorical


def layer_init(layer, std=np.sqrt(2), bias_const=0.0):
    torch.nn.init.orthogonal_(layer.weight, std)
    torch.nn.init.constant_(layer.bias, bias_const)
    return layer


class Agent(nn.Module):
    def __init__(self, envs):
        super().__init__()
        size = int(np.array(envs.single_observation_space.shape).prod())
        self.critic = nn.Sequential(
            layer_init(nn.Linear(size, 64)), nn.Tanh(), layer_init(nn.Linear(64, 64)), nn.Tanh(),
            layer_init(nn.Linear(64, 1), std=1.0),
        )
        self.actor = nn.Sequential(
            layer_init(nn.Linear(size, 64)), nn.Tanh(), layer_init(nn.Linear(64, 64)), nn.Tanh(),
            layer_init(nn.Linear(64, envs.single_action_space.n), std=0.01),
        )

    def get_value(self, x):
        return self.critic(x)

    def get_action_and_value(self, x, action=None):
        probs = Categorical(logits=self.actor(x))
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(x)


if __name__ == "__main__":
    num_envs, num_steps, num_iterations = 4, 128, int(sys.argv[1])
    batch_size = num_envs * num_steps
    minibatch_size = batch_size // 4
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    torch.set_num_threads(1)
    envs = gym.vector.SyncVectorEnv([lambda: gym.make("CartPole-v1") for _ in range(num_envs)])
    agent = Agent(envs)
    optimizer = optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
    obs = torch.zeros((num_steps, num_envs) + envs.single_observation_space.shape)
    actions = torch.zeros((num_steps, num_envs) + envs.single_action_space.shape)
    logprobs = torch.zeros((num_steps, num_envs))
    rewards = torch.zeros((num_steps, num_envs))
    dones = torch.zeros((num_steps, num_envs))
    values = torch.zeros((num_steps, num_envs))
    next_obs, _ = envs.reset(seed=1)
    next_obs = torch.Tensor(next_obs)
    next_done = torch.zeros(num_envs)

    for iteration in range(num_iterations):
        for step in range(num_steps):
            obs[step] = next_obs
            dones[step] = next_done
            with timer("act"):
                with torch.no_grad():
                    action, logprob, _, value = agent.get_action_and_value(next_obs)
                    values[step] = value.flatten()
            actions[step] = action
            logprobs[step] = logprob
            with timer("env"):
                next_obs, reward, terminations, truncations, infos = envs.step(action.numpy())
            next_done = np.logical_or(terminations, truncations)
            rewards[step] = torch.tensor(reward).view(-1)
            next_obs, next_done = torch.Tensor(next_obs), torch.Tensor(next_done)

        with torch.no_grad():
            next_value = agent.get_value(next_obs).reshape(1, -1)
            advantages = torch.zeros_like(rewards)
            lastgaelam = 0
            for t in reversed(range(num_steps)):
                if t == num_steps - 1:
                    nextnonterminal = 1.0 - next_done
                    nextvalues = next_value
                else:
                    nextnonterminal = 1.0 - dones[t + 1]
                    nextvalues = values[t + 1]
                delta = rewards[t] + 0.99 * nextvalues * nextnonterminal - values[t]
                lastgaelam = delta + 0.99 * 0.95 * nextnonterminal * lastgaelam
                advantages[t] = lastgaelam
            returns = advantages + values

        b_obs = obs.reshape((-1,) + envs.single_observation_space.shape)
        b_logprobs = logprobs.reshape(-1)
        b_actions = actions.reshape((-1,) + envs.single_action_space.shape)
        b_advantages = advantages.reshape(-1)
        b_returns = returns.reshape(-1)
        b_inds = np.arange(batch_size)
        with timer("update"):
            for epoch in range(4):
                np.random.shuffle(b_inds)
                for start in range(0, batch_size, minibatch_size):
                    mb_inds = b_inds[start : start + minibatch_size]
                    _, newlogprob, entropy, newvalue = agent.get_action_and_value(
                        b_obs[mb_inds], b_actions.long()[mb_inds]
                    )
                    logratio = newlogprob - b_logprobs[mb_inds]
                    ratio = logratio.exp()
                    with torch.no_grad():
                        approx_kl = ((ratio - 1) - logratio).mean()
                    mb_advantages = b_advantages[mb_inds]
                    mb_advantages = (mb_advantages - mb_advantages.mean()) / (
                        mb_advantages.std() + 1e-8
                    )
                    pg_loss1 = -mb_advantages * ratio
                    pg_loss2 = -mb_advantages * torch.clamp(ratio, 0.8, 1.2)
                    pg_loss = torch.max(pg_loss1, pg_loss2).mean()
                    v_loss = 0.5 * ((newvalue.view(-1) - b_returns[mb_inds]) ** 2).mean()
                    loss = pg_loss - 0.01 * entropy.mean() + v_loss * 0.5
                    optimizer.zero_grad()
                    loss.backward()
                    nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                    optimizer.step()
    envs.close()
"""
)


def compared(directory: Path, text: str, *arguments: str) -> dict[str, tuple[float, float]]:
    """Shares of the stages, of the whole time since the timers began: by hand, by the profile."""
    script = write(directory, text)
    done, session = record(directory, str(script), *arguments)
    assert done.returncode == 0, done.stderr
    spent = json.loads((directory / "timers.json").read_text())
    whole = spent.pop("whole")
    found = stages(session.main)
    return {
        stage: (
            spent.get(stage, 0.0) / whole,
            found.by_stage.get(stage, Share()).elapsed_ns / 1e9 / whole,
        )
        for stage in ("env", "act", "update", "replay")
    }


def check(by_stage: dict[str, tuple[float, float]]) -> None:
    for stage, (by_hand, by_profile) in by_stage.items():
        assert abs(by_hand - by_profile) < 0.05, (stage, by_stage)


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("stable_baselines3") is None,
    reason="stable-baselines3 is not installed",
)
@pytest.mark.parametrize("arguments", [("dummy", "16000"), ("subproc", "12000"), ("sac",)])
def test_stable_baselines3_against_timers(tmp_path, arguments) -> None:
    by_stage = compared(tmp_path, SB3, *arguments)
    check(by_stage)
    # There is something to be wrong about.
    assert by_stage["update"][0] > 0.1


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_a_single_file_against_timers(tmp_path) -> None:
    by_stage = compared(tmp_path, SINGLE_FILE, "60")
    check(by_stage)
    assert min(by_stage[stage][0] for stage in ("env", "act", "update")) > 0.05
