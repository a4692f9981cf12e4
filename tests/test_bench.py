"""The catalogue of benchmarks names existing files and tables."""

import importlib.util
import re
from pathlib import Path

import pytest

from bench.catalog import BENCHES
from bench.train import scores
from bench.train.start import seconds_by_path
from hotloop import timing

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]


@pytest.mark.parametrize("name", BENCHES)
def test_an_entry_has_a_main_and_existing_paths(name):
    spec = importlib.util.find_spec(BENCHES[name].module)
    assert spec is not None
    assert spec.origin is not None
    assert "\ndef main() -> int:" in Path(spec.origin).read_text()
    for table in BENCHES[name].tables:
        assert f"<!-- {table.place} -->" in (ROOT / table.page).read_text()


def test_commands_in_the_pages_are_in_the_catalogue():
    for page in PAGES:
        for name in re.findall(r"python -m bench\s+([\w-]+)", page.read_text()):
            assert name in BENCHES, page.name


def test_seconds_are_read_from_a_printed_tree():
    root = timing.Node("learner", count=1, total_ns=2_500_000_000)
    start = timing.Node("start", count=1, total_ns=1_250_000_000)
    start.children["import torch", "work"] = timing.Node(
        "import torch", count=1, total_ns=820_000_000
    )
    root.children["start", "work"] = start
    root.children["wait", "wait"] = timing.Node("wait", "wait", count=1_000, total_ns=3_000_000)
    found = seconds_by_path(f"other lines\n{timing.render(root)}\n\nThe largest cost is start.")
    assert found == pytest.approx(
        {
            (): 2.5,
            ("start",): 1.25,
            ("start", "import torch"): 0.82,
            ("start", "(rest)"): 0.43,
            ("(rest)",): 1.25,
            ("wait",): 0.003,
        },
        rel=0.01,
    )


def test_a_row_of_the_scores_states_seeds_interval_and_misses(monkeypatch):
    """The middle of 5,000 to 6,000 reaches neither score, but its interval has the second one."""
    references = (scores.Reference("zoo", 9_000.0, 1.0), scores.Reference("Tianshou", 5_750.0, 2.0))
    monkeypatch.setattr(scores, "REFERENCES", {"ppo:HalfCheetah-v5": references})
    runs = [
        {"seed": seed, "mean_return": mean, "took_s": 60 * seed}
        for seed, mean in zip((1, 2, 3, 5, 8), (5_000, 5_500, 5_600, 5_900, 6_000), strict=True)
    ]
    options = {"total_timesteps": 1_000_000}
    cells = {"ppo:HalfCheetah-v5": {"options": options, "runs": runs}}
    monkeypatch.setattr(scores.storage, "load", lambda _: {"cells": cells})
    row = scores.scores_table().splitlines()[-1].split(" | ")
    assert row[0].endswith("(older options)")
    assert row[1:3] == ["1,000,000", "5: 1-3,5,8"]
    assert row[3].startswith("5,666.7 (")
    assert row[4:] == [
        "5,600.0",
        "zoo 9,000 ± 1, **missed**<br>Tianshou 5,750 ± 2, below, but inside the interval",
        "3.0",
        "– |",
    ]
    monkeypatch.setattr(scores, "_as_stored", lambda _: options)
    row = scores.scores_table().splitlines()[-1]
    assert row.endswith("`hotloop train ppo --env-id HalfCheetah-v5 --seeds 1-3,5,8` |")
    assert scores.scores_table("dqn") == ""
