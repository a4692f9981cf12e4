"""The pages for users of other libraries name hotloop's options and commands as they are."""

from __future__ import annotations

import dataclasses
import re

import pytest

from hotloop import cli
from hotloop.algorithms import ALGORITHMS, find
from tests.docs.pages import DOCS

PAGES = ["from-sample-factory", "from-pufferlib", "from-rllib", "from-tianshou"]
OPTIONS = {field.name for name in ALGORITHMS for field in dataclasses.fields(find(name).config)}
# Arguments of `train` and other words that are code and no options.
OTHER_WORDS = {*ALGORITHMS, "train", "env", "network", "on_report", "forward", '"cpu"'}


def right_hand_sides(name: str) -> list[str]:
    """Return the code in the second column of a page's tables of options."""
    text = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    options = text.partition("## Options")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| .+? \| (.+) \|$", options, re.MULTILINE)
    return [code for cell in cells for code in re.findall(r"`([^`]+)`", cell)]


@pytest.mark.parametrize("name", PAGES)
def test_the_second_column_has_existing_options(name):
    codes = right_hand_sides(name)
    assert len(codes) > 25
    wrong = []
    for code in codes:
        if code.startswith("hotloop "):
            known = code.split()[1] in cli.COMMANDS
        else:
            known = code in OTHER_WORDS or code.partition("=")[0].strip() in OPTIONS
        if not known:
            wrong.append(code)
    assert not wrong


@pytest.mark.parametrize("name", PAGES)
def test_values_in_the_second_column_are_accepted(name):
    """Each option with a value makes a configuration of an algorithm that has the option."""
    tried = 0
    for code in right_hand_sides(name):
        option, equals, text = code.partition("=")
        if not equals or option not in OPTIONS or "…" in text or "my_envs" in text:
            continue
        value = eval(text, {"__builtins__": {}})
        algorithms = [find(algorithm) for algorithm in ALGORITHMS]
        having = [
            algorithm.config
            for algorithm in algorithms
            if option in {field.name for field in dataclasses.fields(algorithm.config)}
        ]
        assert any(_is_accepted(config, option, value) for config in having), code
        tried += 1
    assert tried > 5


def _is_accepted(config, option, value):
    try:
        config(**{option: value, **NEEDED.get(option, {})})
    except Exception:
        return False
    return True


# Options that another option needs.
NEEDED = {
    "schedule": {"workers": 2},
    "backend": {"workers": 2},
    "inference": {"workers": 2},
    "inference_actors": {"workers": 2, "backend": "ray", "inference": "central"},
    "hindsight": {"env_id": "my_envs:Reach"},
}
