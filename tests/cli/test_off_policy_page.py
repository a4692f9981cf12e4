"""docs/off-policy.md lists what there is, and the pages' commands have options that there are."""

import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest

from hotloop.algorithms import find
from hotloop.cli.train_options import own_options, parse
from hotloop.training.options import RunOptions
from tests.learner.test_updates import make_batch, make_learner

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "off-policy.md"
ALGORITHMS = {name: find(name) for name in ("sac", "td3", "dqn")}
# What every run has, and the page leaves to `--help`.
COMMON = {field.name for field in fields(RunOptions)} - {
    *("total_timesteps", "num_envs", "torch_threads", "execution")
}


def table(name):
    """The head and the rows of the table between two markers, by their cells."""
    _, _, rest = PAGE.read_text().partition(f"<!-- {name} -->\n")
    lines, end, _ = rest.partition(f"<!-- end {name} -->")
    assert end
    head, _, *rows = (
        [cell.strip() for cell in line.split("|")[1:-1]] for line in lines.splitlines()
    )
    return head, rows


def is_told(cell, field):
    """Whether a cell says what a field's default is."""
    default = field.default
    if default is None:
        return cell == "–"
    if isinstance(default, bool):
        return cell == ("on" if default else "off")
    if isinstance(default, tuple):
        return cell == " ".join(map(str, default))
    if isinstance(default, str):
        return cell == default
    return float(cell.replace(",", "")) == default


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_table_of_options_is_the_configuration(name):
    head, rows = table("options")
    column = head.index(name)
    cells = {row[0].strip("`-").replace("-", "_"): row[column] for row in rows if row[column]}
    there = {f.name: f for f in fields(ALGORITHMS[name].config) if f.name not in COMMON}
    assert cells.keys() == there.keys()
    for option, cell in cells.items():
        assert is_told(cell, there[option]), f"{option}: {cell}, not {there[option].default}"


def test_the_metrics_are_those_of_the_updates():
    text = PAGE.read_text().partition("## What a run writes")[2]
    for name in ALGORITHMS:
        row = re.search(rf"^\| {name} \| (.*) \|$", text, re.MULTILINE)
        learner = make_learner(name, "eager")
        for seed in range(2):  # the second one updates the policy too
            learner.update(make_batch(name, seed))
        assert re.findall("`([a-z_]+)`", row[1]) == list(learner.metrics.means())


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda page: page.stem
)
def test_commands_have_options_that_there_are(page):
    """Of sac, td3 and dqn, in lines of their own or within a sentence."""
    text = page.read_text()
    commands = re.findall(r"(?:^(?:    )?|`)hotloop train ((?:sac|td3|dqn)\b[^`\n]*)", text, re.M)
    if page == PAGE:
        assert len(commands) >= 5
    for command in commands:
        name, *args = shlex.split(command)
        if args[-1:] != ["--help"] and "…" not in args:
            algorithm = ALGORITHMS[name]
            _, rest = own_options(args)
            parse(algorithm.config, rest, prog=name, presets=algorithm.presets)
