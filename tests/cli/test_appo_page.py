"""docs/algorithms/appo.md lists the metrics that APPO adds to PPO's."""

import re
from dataclasses import fields
from pathlib import Path

from hotloop.algorithms import appo, ppo
from hotloop.runs import RunDirectory

ROOT = Path(__file__).parent.parent.parent
TEXT = (ROOT / "docs" / "algorithms" / "appo.md").read_text(encoding="utf-8")


def test_appo_has_ppos_options_with_ppos_defaults():
    """The page lists only APPO's options and links to PPO's page for the others."""
    ppo_defaults = {field.name: field.default for field in fields(ppo.Config)}
    assert all(
        ppo_defaults[x.name] == x.default for x in fields(appo.Config) if x.name in ppo_defaults
    )


def test_the_table_lists_the_metrics_that_appo_adds_to_ppo(tmp_path):
    small = {"num_steps": 16, "num_envs": 2, "total_timesteps": 32, "execution": "eager"}
    names = []
    for algorithm in (ppo, appo):
        path = tmp_path / algorithm.algorithm.name
        algorithm.train(algorithm.Config(**small, run_dir=str(path)))
        names.append(set(RunDirectory.open(path).metrics()[0]))
    table = TEXT.partition("## What a run writes")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`([a-z_]+)`", row)} == names[1] - names[0]
