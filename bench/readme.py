"""Table of the README: one row for each kind of work."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from bench import storage
from bench.markdown import format_ratio, table


class ReadmeRow(NamedTuple):
    """A row of the README's table.

    Attributes:
        work: label of the work.
        hotloop: hotloop's figure with its unit.
        peer: the other library's name and figure.
        ratio: speed of hotloop over that of the peer.
        whole: the same ratio from the prompt to the end of the run, or empty.
        page: link to the page with the measurement.
    """

    work: str
    hotloop: str
    peer: str
    ratio: str
    whole: str
    page: str


def readme_table() -> str:
    """Return the table, without rows that have no stored result."""
    rows = [["work", "hotloop", "peer", "ratio", "whole run", "measured in"]]
    for make in ROWS:
        try:
            row = make()
        except FileNotFoundError:  # not measured yet
            continue
        name = row.page.rpartition("/")[2].partition("#")[0].removesuffix(".md")
        rows.append([*row[:-1], f"[{name}]({row.page})"])
    return table(*rows)


def _training(name: str, work: str, figure: str, page: str) -> ReadmeRow:
    result = storage.load(f"train_{name}")
    hotloop, peer = (
        result["summaries"][contender][figure]["median"] for contender in ("hotloop", "sb3")
    )
    ratios = result["ratios"]["sb3"]
    return ReadmeRow(
        work,
        f"{hotloop:,.0f} steps/s",
        f"SB3: {peer:,.0f}",
        format_ratio(ratios[RATIOS[figure]]),
        format_ratio(ratios["total"]),
        page,
    )


RATIOS = {"steps_per_s": "steps_per_s", "steps_per_s_while_learning": "while_learning"}


def _replay() -> ReadmeRow:
    ways = storage.load("replay_loop")["ways"]
    both = {name: way["sizes"].get("1000000", {}).get("both") for name, way in ways.items()}
    hotloop, peer = (both[name]["median"] for name in ("hotloop_prioritized", "tianshou"))
    return ReadmeRow(
        "prioritized replay: draw and update 256 of 1,000,000, within a training",
        f"{hotloop * 1e6:,.0f} µs",
        f"tianshou: {peer * 1e6:,.0f}",
        format_ratio(peer / hotloop),
        "",
        "docs/replay-speed.md#in-a-training-loop",
    )


def _workers() -> ReadmeRow:
    ways = storage.load("rollouts_lockstep")["cases"]["steps"]["ways"]
    hotloop, peer = (ways[name]["rate 0%"]["median"] for name in ("variable", "gymnasium"))
    return ReadmeRow(
        "24 uneven environments (3 ms a step, one step in ten 100 ms)",
        f"{hotloop:,.0f} steps/s",
        f"Gymnasium: {peer:,.0f}",
        format_ratio(hotloop / peer),
        "",
        "docs/workers-speed.md",
    )


def _bandits() -> ReadmeRow:
    ways = storage.load("bandit_seed")["ways"]
    hotloop, peer = (ways[name]["ns"]["median"] for name in ("hotloop", "numpy_over_runs"))
    return ReadmeRow(
        "ε-greedy bandit, 2,000 runs at once, one step of one run",
        f"{hotloop:.1f} ns",
        f"NumPy: {peer:,.0f}",
        format_ratio(peer / hotloop),
        "",
        "docs/bandit-speed.md",
    )


def _trainings() -> list[Callable[[], ReadmeRow]]:
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


ROWS: tuple[Callable[[], ReadmeRow], ...] = (*_trainings(), _replay, _workers, _bandits)
