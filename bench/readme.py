"""The README's table: one row for each kind of work, from what the benchmarks have stored."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from bench import storage
from bench.markdown import table, times

BLOB = "https://github.com/hotloop/hotloop/blob/main/"


class Row(NamedTuple):
    """One row.

    Attributes:
        work: what is done.
        ours: hotloop's figure, with its unit.
        peer: the other's, with its name.
        ratio: how many times as fast ours is.
        whole: the same from the prompt to the end of the run; empty where that is not asked.
        page: where it is measured.
    """

    work: str
    ours: str
    peer: str
    ratio: str
    whole: str
    page: str


def readme_table() -> str:
    """The table; a row whose benchmark has not run is left out."""
    rows = [["work", "hotloop", "peer", "ratio", "whole run", "measured in"]]
    for make in ROWS:
        try:
            row = make()
        except FileNotFoundError:  # not measured yet
            continue
        name = row.page.rpartition("/")[2].partition("#")[0].removesuffix(".md")
        rows.append([*row[:-1], f"[{name}]({BLOB}{row.page})"])
    return table(*rows)


def _training(name: str, about: str, figure: str, page: str) -> Row:
    result = storage.load(f"train_{name}")
    ours, peer = (result["summaries"][who][figure]["median"] for who in ("hotloop", "sb3"))
    ratios = result["ratios"]["sb3"]
    return Row(
        about,
        f"{ours:,.0f} steps/s",
        f"SB3: {peer:,.0f}",
        times(ratios[RATIOS[figure]]),
        times(ratios["total"]),
        page,
    )


RATIOS = {"steps_per_s": "steps_per_s", "steps_per_s_while_learning": "while_learning"}


def _replay() -> Row:
    ways = storage.load("replay_loop")["ways"]
    both = {name: way["sizes"].get("1000000", {}).get("both") for name, way in ways.items()}
    ours, peer = (both[name]["median"] for name in ("hotloop_prioritized", "tianshou"))
    return Row(
        "prioritized replay: draw and update 256 of 1,000,000, within a training",
        f"{ours * 1e6:,.0f} µs",
        f"tianshou: {peer * 1e6:,.0f}",
        times(peer / ours),
        "",
        "docs/replay-speed.md#in-a-training-loop",
    )


def _workers() -> Row:
    ways = storage.load("rollouts_lockstep")["cases"]["steps"]["ways"]
    ours, peer = (ways[name]["rate 0%"]["median"] for name in ("variable", "gymnasium"))
    return Row(
        "24 uneven environments (3 ms a step, one step in ten 100 ms)",
        f"{ours:,.0f} steps/s",
        f"Gymnasium: {peer:,.0f}",
        times(ours / peer),
        "",
        "docs/workers-speed.md",
    )


def _bandits() -> Row:
    ways = storage.load("bandit_seed")["ways"]
    ours, peer = (ways[name]["ns"]["median"] for name in ("hotloop", "numpy_over_runs"))
    return Row(
        "ε-greedy bandit, 2,000 runs at once, one step of one run",
        f"{ours:.1f} ns",
        f"NumPy: {peer:,.0f}",
        times(peer / ours),
        "",
        "docs/bandit-speed.md",
    )


def _trainings() -> list[Callable[[], Row]]:
    speed, learning = "steps_per_s", "steps_per_s_while_learning"
    trainings = (
        ("ppo_CartPole-v1", "PPO, CartPole-v1", speed, "docs/speed.md#ppo"),
        ("ppo_HalfCheetah-v5", "PPO, HalfCheetah-v5", speed, "docs/speed.md#ppo"),
        ("ppo_ALE-Pong-v5", "PPO, Atari Pong", speed, "docs/speed.md#ppo"),
        ("sac_HalfCheetah-v5", "SAC, HalfCheetah-v5", learning, "docs/speed.md#sac-td3-and-dqn"),
        ("td3_HalfCheetah-v5", "TD3, HalfCheetah-v5", learning, "docs/speed.md#sac-td3-and-dqn"),
        ("dqn_CartPole-v1", "DQN, CartPole-v1", learning, "docs/speed.md#sac-td3-and-dqn"),
    )
    return [partial(_training, *training) for training in trainings]


ROWS: tuple[Callable[[], Row], ...] = (*_trainings(), _replay, _workers, _bandits)
