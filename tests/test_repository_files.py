"""The README, ARCHITECTURE.md and the release files match the project."""

from __future__ import annotations

import ast
import re
import runpy
from pathlib import Path

import pytest

import hotloop
from bench import storage
from bench.readme import readme_table
from hotloop.cli import COMMANDS

ROOT = Path(__file__).parent.parent
PYPROJECT = (ROOT / "pyproject.toml").read_text()
BLOB = "https://github.com/hotloop/hotloop/blob/main/"
RAW = "https://raw.githubusercontent.com/hotloop/hotloop/main/"
PAGES = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "ARCHITECTURE.md"]
PAGES += ["docs/speed.md", "docs/parts.md", "docs/commands.md"]


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of a page's headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def check(link: str, start: Path) -> None:
    """Check that a link relative to `start` names an existing file and anchor."""
    path, _, anchor = link.partition("#")
    target = start / path
    assert target.exists(), f"{link} is not there"
    assert not anchor or anchor in anchors(target), f"{link}: no such heading"


def test_the_packages_readme_has_absolute_links(monkeypatch):
    """Package indexes show the README without the repository."""
    arguments = {}
    monkeypatch.setattr("setuptools.setup", arguments.update)
    runpy.run_path(str(ROOT / "setup.py"))
    links = re.findall(r"\]\(([^)]+)\)", arguments["long_description"])
    relative = re.findall(r"\]\(([^)]+)\)", (ROOT / "README.md").read_text())
    assert len(links) == len(relative) > 20
    images = [link for link in links if link.startswith(RAW)]
    assert images == [RAW + link for link in relative if link.endswith(".png")]
    assert all(link.startswith((BLOB, RAW)) for link in links)


@pytest.mark.parametrize("name", PAGES)
def test_links_and_anchors(name):
    page = ROOT / name
    for link in re.findall(r"\]\((?!http)([^)]+)\)", page.read_text()):
        check(link, page.parent if not link.startswith("#") else page)


def test_the_readme_is_short():
    assert (ROOT / "README.md").read_text().count("\n") <= 120


def test_the_readmes_speed_claims_match_the_results():
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


def test_the_import_rules_cover_all_packages():
    layers = re.search(r"layers = \[\n(.*?)\n\]", PYPROJECT, re.DOTALL)
    names = [set(re.findall(r"hotloop\.(\w+)", line)) for line in reversed(layers[1].splitlines())]
    text = (ROOT / "ARCHITECTURE.md").read_text()
    table = text.partition("<!-- rooms -->")[2].partition("<!-- end rooms -->")[0]
    rows = [set(re.findall(r"`(\w+)`", row.split("|")[1])) for row in table.splitlines()[3:] if row]
    assert rows == names
    rooms = {path.stem for path in (ROOT / "src" / "hotloop").iterdir() if path.suffix != ".typed"}
    assert set.union(*rows) == {name for name in rooms if not name.startswith("__")}


# Public classes with named options, which a user sets one by one.
MANY_PARAMETERS = {"Normalizer", "Learner", "ReplayBuffer", "DeviceReplay"}


def test_constructors_have_at_most_eight_parameters():
    """What belongs together travels as one value, such as an `EnvSpec`."""
    too_long = set()
    for path in (ROOT / "src" / "hotloop").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for method in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                    count = len(method.args.args) - 1 + len(method.args.kwonlyargs)
                    too_long |= {node.name} if count > 8 else set()
    assert too_long == MANY_PARAMETERS


def test_a_release_says_one_version():
    version = hotloop.__version__
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", changes, re.MULTILINE)
    for heading in re.findall(r"^## \[(.*?)\]", changes, re.MULTILINE):
        assert f"\n[{heading}]: https://" in changes


def test_the_citation_has_the_required_fields():
    """Version 1.2.0 of the Citation File Format requires these fields and ISO dates."""
    lines = (ROOT / "CITATION.cff").read_text().splitlines()
    found = dict(line.split(": ", 1) for line in lines if re.match(r"[a-z-]+: ", line))
    assert found["cff-version"] == "1.2.0"
    assert found["message"]
    assert found["title"]
    assert found["type"] in ("software", "dataset")
    assert re.fullmatch(r'"\d{4}-\d\d-\d\d"', found["date-released"])
    assert found["license"] == "MIT"
    assert re.search(r'^authors:\n  - name: ".+"$', "\n".join(lines), re.MULTILINE)


def test_all_has_every_extra_that_users_install():
    extras = re.search(
        r"^\[project.optional-dependencies\]\n(.*?)^\[", PYPROJECT, re.MULTILINE | re.DOTALL
    )[1]
    names = set(re.findall(r"^([\w-]+) = \[", extras, re.MULTILINE))
    whole = re.search(r"^all = \[\n(.*?)^\]", extras, re.MULTILINE | re.DOTALL)[1]
    within = set(re.findall(r"[\w-]+", " ".join(re.findall(r"hotloop\[(.*?)\]", whole))))
    # These extras are for developers.
    assert within == names - {"all", "bench", "dev", "docs"}


def test_pins_are_in_one_place():
    files = [ROOT / "constraints.txt", ROOT / "bench" / "constraints.txt"]
    pins = [
        (line.partition("==")[0].lower().replace("_", "-"), line.partition(";")[2].strip())
        for file in files
        for line in file.read_text().splitlines()
        if line and not line.startswith("#")
    ]
    assert all(pins.count(pin) == 1 for pin in pins)


@pytest.mark.parametrize("name", ["pull_request_template.md", "ISSUE_TEMPLATE/slow.yml"])
def test_issue_forms_use_existing_commands(name):
    text = (ROOT / ".github" / name).read_text()
    for command in re.findall(r"`hotloop (\w+)", text) + re.findall(r"label: hotloop (\w+)", text):
        assert command in COMMANDS
    for target in re.findall(r"`make ([\w ]+)`", text):
        for part in target.split():
            assert f"\n{part}: " in (ROOT / "Makefile").read_text()
