"""The README, ARCHITECTURE.md and what describes a release hold what the project holds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench import storage
from bench.readme import BLOB, readme_table

ROOT = Path(__file__).parent.parent
RAW = "https://raw.githubusercontent.com/hotloop/hotloop/main/"
OWN_PAGES = ["ARCHITECTURE.md", "docs/speed.md", "docs/parts.md", "docs/commands.md"]


def anchors(page: Path) -> set[str]:
    """Headings of a page as GitHub makes anchors of them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def check(link: str, start: Path) -> None:
    """A link into the repository, relative to `start`, names a file and an anchor of it."""
    path, _, anchor = link.partition("#")
    target = start / path
    assert target.exists(), f"{link} is not there"
    assert not anchor or anchor in anchors(target), f"{link}: no such heading"


def test_readme_links_are_absolute_and_lead_somewhere():
    links = re.findall(r"\]\(([^)]+)\)", (ROOT / "README.md").read_text())
    assert len(links) > 20
    for link in links:
        base = next((base for base in (BLOB, RAW) if link.startswith(base)), None)
        assert base, f"{link}: a package index shows the README without the repository"
        check(link.removeprefix(base), ROOT)


@pytest.mark.parametrize("name", OWN_PAGES)
def test_links_and_anchors(name):
    page = ROOT / name
    for link in re.findall(r"\]\((?!http)([^)]+)\)", page.read_text()):
        check(link, page.parent if not link.startswith("#") else page)


def test_the_readme_is_short():
    assert (ROOT / "README.md").read_text().count("\n") <= 120


def test_what_the_readme_claims_of_speed_was_measured():
    text = (ROOT / "README.md").read_text()
    low, high = map(float, re.search(r"([\d.]+) to ([\d.]+) times the speed", text).groups())
    ratios = [
        storage.load(f"train_{name}")["ratios"]["sb3"][ratio]
        for name, ratio in (
            ("ppo_CartPole-v1", "steps_per_s"),
            ("ppo_HalfCheetah-v5", "steps_per_s"),
            ("ppo_ALE-Pong-v5", "steps_per_s"),
            ("sac_HalfCheetah-v5", "while_learning"),
            ("td3_HalfCheetah-v5", "while_learning"),
            ("dqn_CartPole-v1", "while_learning"),
        )
    ]
    assert low <= min(ratios)
    assert high <= max(ratios)
    assert readme_table() in text


def test_the_rooms_are_those_that_imports_are_checked_by():
    toml = (ROOT / "pyproject.toml").read_text()
    layers = re.search(r"layers = \[\n(.*?)\n\]", toml, re.DOTALL)
    names = [set(re.findall(r"hotloop\.(\w+)", line)) for line in reversed(layers[1].splitlines())]
    text = (ROOT / "ARCHITECTURE.md").read_text()
    table = text.partition("<!-- rooms -->")[2].partition("<!-- end rooms -->")[0]
    rows = [set(re.findall(r"`(\w+)`", row.split("|")[1])) for row in table.splitlines()[3:] if row]
    assert rows == names
    there = {path.stem for path in (ROOT / "src" / "hotloop").iterdir() if path.suffix != ".typed"}
    assert set.union(*rows) == {name for name in there if not name.startswith("__")}
