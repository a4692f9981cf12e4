"""docs/sweeps.md lists the samplers, pruners and forms of spaces that there are."""

import re
from pathlib import Path

from hotloop.algorithms import ppo
from hotloop.sweeps.pruners import PRUNERS
from hotloop.sweeps.samplers import SAMPLERS
from hotloop.sweeps.spaces import parse

TEXT = (Path(__file__).parent.parent.parent / "docs" / "sweeps.md").read_text(encoding="utf-8")


def test_the_tables_of_names_are_what_there_is():
    part = TEXT.partition("<!-- sweep names -->")[2].partition("<!-- end sweep names -->")[0]
    told = dict(re.findall(r"^\| `([a-z]+)` \| (.*) \|$", part, re.MULTILINE))
    assert told == {**SAMPLERS, **PRUNERS}


def test_the_spaces_that_are_shown_are_spaces():
    part = TEXT.partition("## Spaces")[2].partition("\n## ")[0]
    shown = re.findall(r"^\| `(\w+)=(.*?)` \|", part, re.MULTILINE)
    assert len(shown) == 10
    for name, text in shown:
        assert parse({name: text}, ppo.Config)
