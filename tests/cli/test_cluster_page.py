"""docs/cluster.md shows what `hotloop plan` prints, and the options that there are."""

import re
import textwrap
from dataclasses import fields
from pathlib import Path

from hotloop.algorithms import ppo
from hotloop.cli import plan

ROOT = Path(__file__).parent.parent.parent
TEXT = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")


def test_what_the_plan_prints_is_what_the_page_shows(capsys):
    section = TEXT.partition("## How many workers")[2]
    (command,) = re.findall(r"^    hotloop plan (.*)$", section, re.MULTILINE)
    assert plan.run(command.split()) == 0
    shown = section.partition(command)[2].partition("\n\n`--slow-ms")[0]
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert [line.rstrip() for line in textwrap.dedent(shown).strip("\n").splitlines()] == printed


def test_the_table_of_options_has_what_ray_is_started_with():
    table = TEXT.partition("| option | default | |")[2].partition("\n\n")[0]
    told = {name.replace("-", "_") for name in re.findall(r"^\| `--([a-z-]+)", table, re.MULTILINE)}
    known = {field.name for field in fields(ppo.Config)}
    begins = ("ray_", "worker_", "workers_", "inference")
    own = {name for name in known if name.startswith(begins)}
    assert told == own | {"backend", "step_timeout_s"}


def test_the_files_to_start_from_are_there():
    for name in re.findall(r"\]\(\.\./(examples/cluster[^)]*)\)", TEXT):
        assert (ROOT / name).exists(), name
