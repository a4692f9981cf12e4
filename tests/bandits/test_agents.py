"""One file an agent: where it is, what it says of its settings, and that none of it needs Numba."""

import ast
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import hotloop.bandits
from hotloop.bandits import AGENTS, ENVIRONMENTS, EpsilonGreedy
from hotloop.bandits.agents import base
from hotloop.cli.bandit.fields import field_docs
from hotloop.errors import ConfigError

FOLDER = Path(base.__file__).parent


def test_every_file_is_in_the_table():
    files = {path.stem for path in FOLDER.glob("*.py")} - {"__init__", "base"}
    assert {name.replace("-", "_") for name in AGENTS} == files
    for name, one in AGENTS.items():
        assert one.__module__ == f"hotloop.bandits.agents.{name.replace('-', '_')}"
        assert one.__name__ in hotloop.bandits.__all__


@pytest.mark.parametrize("one", AGENTS.values())
def test_no_agent_knows_another(one):
    tree = ast.parse(Path(sys.modules[one.__module__].__file__).read_text(encoding="utf-8"))
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    known = {module for module in modules if module.startswith("hotloop.bandits.agents")}
    assert known == {"hotloop.bandits.agents.base"}


@pytest.mark.parametrize("one", [*AGENTS.values(), *ENVIRONMENTS.values()])
def test_every_setting_has_its_text_and_a_value_that_is_refused(one):
    docs = field_docs(one)
    for setting in fields(one):
        assert docs[setting.name]
        with pytest.raises(ConfigError, match=f"`{setting.name}"):
            one(**{setting.name: "nonsense"})


def test_units():
    assert EpsilonGreedy().unit_of("initial_value") == "units of reward"
    assert EpsilonGreedy().unit_of("epsilon") == "dimensionless"


def test_settings_load_without_numba():
    code = (
        "import sys; import hotloop.bandits as b; from hotloop.bandits.book import FIGURES\n"
        "[one() for one in b.AGENTS.values()]; print('numba' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
