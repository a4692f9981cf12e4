"""docs/cluster.md shows the output of `hotloop plan` and all cluster options."""

import re
import textwrap
from dataclasses import fields
from pathlib import Path

from hotloop.algorithms import ppo
from hotloop.cli import plan

ROOT = Path(__file__).parent.parent.parent
TEXT = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")


def test_the_page_shows_the_output_of_plan(capsys):
    section = TEXT.partition("## How many workers")[2]
    (command,) = re.findall(r"^    hotloop plan (.*)$", section, re.MULTILINE)
    assert plan.run(command.split()) == 0
    example = section.partition(command)[2].partition("\n\n`--slow-ms")[0]
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert [line.rstrip() for line in textwrap.dedent(example).strip("\n").splitlines()] == printed


def test_the_table_lists_all_cluster_options():
    table = TEXT.partition("| option | default | |")[2].partition("\n\n")[0]
    listed = {
        name.replace("-", "_") for name in re.findall(r"^\| `--([a-z-]+)", table, re.MULTILINE)
    }
    options = {field.name for field in fields(ppo.Config)}
    prefixes = ("ray_", "worker_", "workers_", "inference")
    cluster_options = {name for name in options if name.startswith(prefixes)}
    assert listed == cluster_options | {"backend", "step_timeout_s"}


def test_the_linked_cluster_files_exist():
    for name in re.findall(r"\]\(\.\./(examples/cluster[^)]*)\)", TEXT):
        assert (ROOT / name).exists(), name
