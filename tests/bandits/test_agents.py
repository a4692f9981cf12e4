"""Each agent has its own file, documents its settings and loads without Numba."""

import ast
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import hotloop.bandits
from hotloop.bandits import AGENTS, ENVIRONMENTS, EpsilonGreedy
from hotloop.bandits.agents import base
from hotloop.base.field_docs import field_docs
from hotloop.errors import ConfigError

FOLDER = Path(base.__file__).parent


def test_every_file_is_in_the_table():
    files = {path.stem for path in FOLDER.glob("*.py")} - {"__init__", "base"}
    assert {name.replace("-", "_") for name in AGENTS} == files
    for name, agent in AGENTS.items():
        assert agent.__module__ == f"hotloop.bandits.agents.{name.replace('-', '_')}"
        assert agent.__name__ in hotloop.bandits.__all__


@pytest.mark.parametrize("agent", AGENTS.values())
def test_agents_import_only_their_base(agent):
    tree = ast.parse(Path(sys.modules[agent.__module__].__file__).read_text(encoding="utf-8"))
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported_agents = {module for module in modules if module.startswith("hotloop.bandits.agents")}
    assert imported_agents == {"hotloop.bandits.agents.base"}


@pytest.mark.parametrize("kind", [*AGENTS.values(), *ENVIRONMENTS.values()])
def test_settings_are_documented_and_validated(kind):
    docs = field_docs(kind)
    for setting in fields(kind):
        assert docs[setting.name]
        with pytest.raises(ConfigError, match=f"`{setting.name}"):
            kind(**{setting.name: "nonsense"})


def test_units():
    assert EpsilonGreedy().unit_of("initial_value") == "units of reward"
    assert EpsilonGreedy().unit_of("epsilon") == "dimensionless"
