"""Speed of collecting: one shared policy for the agents of a game, beside single environments.

    python -m bench agents [--agents 4] [--repeats 40]

Four games of K agents and 4 · K single environments act with the same network. A step takes the
same CPU time per agent, in which a game also builds its dictionaries. Both ways collect fragments
of 128 steps in turn, in one process. The table has medians of CPU time over fragments, and of the
ratio within each pair.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from pettingzoo import ParallelEnv

from bench import storage
from bench.markdown import format_figure, table
from bench.measuring import spread

RESULT = "agents"
GAMES, NUM_STEPS, LENGTH = 4, 128, 100
STEP_US = (5.0, 20.0, 80.0)
LIMIT = 1.1
_OBS = np.random.default_rng(0).normal(size=(LENGTH + 1, 8)).astype(np.float32)
_OBS_SPACE = gymnasium.spaces.Box(-10.0, 10.0, (8,), np.float32)
_ACTION_SPACE = gymnasium.spaces.Discrete(4)


def _wait_until(deadline: float) -> None:
    while time.thread_time() < deadline:
        pass


class Single(gymnasium.Env):
    """An environment whose step takes `step_us` microseconds."""

    observation_space, action_space = _OBS_SPACE, _ACTION_SPACE

    def __init__(self, step_us: float = 20.0) -> None:
        self.step_s, self.steps = step_us / 1e6, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        """See Gymnasium."""
        self.steps = 0
        return _OBS[0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        """See Gymnasium."""
        deadline = time.thread_time() + self.step_s
        self.steps += 1
        result = _OBS[self.steps], float(action == 1), False, self.steps == LENGTH, {}
        _wait_until(deadline)
        return result


class Game(ParallelEnv):
    """A game whose step takes `step_us` microseconds for each of its agents."""

    metadata = {"name": "game"}  # noqa: RUF012  PettingZoo's attribute

    def __init__(self, num_agents: int = 4, step_us: float = 20.0) -> None:
        self.possible_agents = [f"agent_{k}" for k in range(num_agents)]
        self.step_s, self.steps = step_us / 1e6 * num_agents, 0

    def observation_space(self, agent: str) -> gymnasium.Space:
        """See PettingZoo."""
        return _OBS_SPACE

    def action_space(self, agent: str) -> gymnasium.Space:
        """See PettingZoo."""
        return _ACTION_SPACE

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict, dict]:
        """See PettingZoo."""
        self.steps, self.agents = 0, list(self.possible_agents)
        return dict.fromkeys(self.agents, _OBS[0]), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict, dict, dict, dict, dict]:
        """See PettingZoo."""
        deadline = time.thread_time() + self.step_s
        self.steps += 1
        agents, is_last = self.agents, self.steps == LENGTH
        if is_last:
            self.agents = []
        result = (
            dict.fromkeys(agents, _OBS[self.steps]),
            {agent: float(action == 1) for agent, action in actions.items()},
            dict.fromkeys(agents, False),
            dict.fromkeys(agents, is_last),
            {agent: {} for agent in agents},
        )
        _wait_until(deadline)
        return result


def make_collect(
    env: Callable[..., Any], kwargs: dict[str, Any], num_envs: int
) -> Callable[[], Any]:
    """Return a function that collects the next fragment of N environments."""
    from hotloop.envs import EnvSpec, make_vec
    from hotloop.policies import ActingPolicy, PolicySnapshot, actor_critic
    from hotloop.policies.forward import LearnedNetwork
    from hotloop.rollouts.inline import InlineRollout

    envs = make_vec(EnvSpec(env, kwargs), num_envs)
    network = actor_critic(envs)
    nets = LearnedNetwork(network)
    policy = ActingPolicy(network, PolicySnapshot(0, nets.layout.views(nets.initial(0)), None))
    rollout = InlineRollout(envs, policy, num_steps=NUM_STEPS, seed=0)
    return rollout.collect


def measure(num_agents: int, step_us: float, repeats: int) -> dict[str, Any]:
    """Return microseconds per step of one agent of both ways, and the ratios of pairs."""
    num_envs = GAMES * num_agents
    ways = {
        "single": make_collect(Single, {"step_us": step_us}, num_envs),
        "game": make_collect(Game, {"num_agents": num_agents, "step_us": step_us}, num_envs),
    }
    figures: dict[str, list[float]] = {name: [] for name in ways}
    for collect in ways.values():
        collect()
    for repeat in range(repeats):
        order = list(ways) if repeat % 2 else list(ways)[::-1]
        for name in order:
            start = time.thread_time()
            ways[name]()
            figures[name].append((time.thread_time() - start) / (NUM_STEPS * num_envs) * 1e6)
    ratios = [a / b for a, b in zip(figures["game"], figures["single"], strict=True)]
    return {
        "step_us": step_us,
        **{x: spread(y) for x, y in figures.items()},
        "ratio": spread(ratios),
    }


def agents_table() -> str:
    """Return a table with one row per step cost."""
    stored = storage.load(RESULT)
    heading = "a step of an agent takes, µs"
    rows = [
        [heading, "single environments, µs", f"games of {stored['agents']} agents, µs", "ratio"]
    ]
    for row in stored["rows"]:
        times = [format_figure(row[name], 1.0) for name in ("single", "game")]
        rows.append([f"{row['step_us']:.0f}", *times, f"{row['ratio']['median']:.2f}"])
    return table(*rows)


def main() -> int:
    """Measure, print and store the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench agents", description=__doc__)
    parser.add_argument("--agents", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=40)
    options = parser.parse_args()
    rows = [measure(options.agents, step_us, options.repeats) for step_us in STEP_US]
    storage.save(RESULT, {"agents": options.agents, "rows": rows}, peers=("pettingzoo",))
    print(agents_table())
    worst = max(row["ratio"]["median"] for row in rows)
    print(f"at most {worst:.2f} times as long (target {LIMIT})")
    return int(worst > LIMIT)
