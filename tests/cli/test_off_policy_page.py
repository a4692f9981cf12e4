"""docs/off-policy.md lists the metrics, and the pages' commands use existing options."""

import re
import shlex
from pathlib import Path

from hotloop.algorithms import find
from hotloop.cli.train_options import split_command_options
from hotloop.training.options.arguments import parse
from tests.learner.test_updates import make_batch, make_learner

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "off-policy.md"
ALGORITHMS = {name: find(name) for name in ("sac", "td3", "dqn")}


def test_the_page_lists_the_metrics_of_the_updates():
    text = PAGE.read_text().partition("## What a run writes")[2]
    for name in ALGORITHMS:
        row = re.search(rf"^\| {name} \| (.*) \|$", text, re.MULTILINE)
        learner = make_learner(name, "eager")
        for seed in range(2):  # the second one updates the policy too
            learner.update(make_batch(name, seed))
        assert re.findall("`([a-z_]+)`", row[1]) == list(learner.metrics.means())


def test_commands_in_sentences_use_existing_options():
    """tests/docs/test_snippets.py checks those in blocks of code."""
    pages = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    commands = set(re.findall(r"`hotloop train ((?:sac|td3|dqn) [^`\n…]*)`", text))
    assert len(commands) > 4
    for command in commands:
        name, *args = shlex.split(command)
        algorithm = ALGORITHMS[name]
        _, options = split_command_options(args)
        parse(algorithm.config, options, prog=name, presets=algorithm.presets)
