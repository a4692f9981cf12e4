"""The catalogue of benchmarks names existing files and tables."""

import importlib.util
import re
from pathlib import Path

import pytest

from bench.catalog import BENCHES
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
