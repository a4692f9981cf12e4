"""Imports run one way, also those inside functions, for type checkers, and by string."""

import re
from pathlib import Path

import pytest

from hotloop.training.options.option_files import toml_loads
from tests.import_graph import circles, import_graph, upward_imports

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def graph():
    return import_graph(ROOT / "src" / "hotloop")


def explained_circles():
    """Return the circles in the table of ARCHITECTURE.md."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    table = text.partition("<!-- circles -->")[2].partition("<!-- end circles -->")[0]
    groups = (
        re.findall(r"`([\w.]+)`", row.split("|")[1]) for row in table.split("\n") if "`" in row
    )
    return [sorted(f"hotloop.{name}" for name in group) for group in groups]


def test_only_explained_circles_exist(graph):
    assert circles(graph) == sorted(explained_circles())


def test_no_import_runs_to_a_higher_room(graph):
    rules = toml_loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = rules["tool"]["importlinter"]["contracts"][0]["layers"]
    assert upward_imports(graph, layers) == []


def test_the_front_door_imports_no_room_but_by_name(graph):
    """No module imports the package itself, whose names lead to all rooms."""
    assert [name for name, targets in graph.items() if "hotloop" in targets] == []


# --- the graph ------------------------------------------------------------------------------------

IMPORTS = {
    "at the top": "from package.high.user import Name",
    "of a module": "import package.high.user",
    "relative": "from ..high import user",
    "inside a function": "def f():\n    from package.high.user import Name",
    "for type checkers": (
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from package.high.user import Name"
    ),
    "by string": "import importlib\nx = importlib.import_module('package.high.user')",
    "by a pattern": "import importlib\nf = lambda x: importlib.import_module(f'package.high.{x}')",
    "by a constant": "ROOM = 'package.high'\nNAMES = {'x': f'{ROOM}.user'}",
    "as an entry": "command = ['python', '-m', 'package.high.user']",
    "as a function's name": "start('package.high.user:begin')",
}


def write(root, **files):
    for name, text in files.items():
        path = root / "package" / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return import_graph(root / "package")


@pytest.mark.parametrize("kind", IMPORTS)
def test_a_planted_circle_is_found(tmp_path, kind):
    graph = write(tmp_path, low__tool=IMPORTS[kind], high__user="from package.low import tool")
    assert circles(graph) == [["package.high.user", "package.low.tool"]]
    layers = ["package.high", "package.low"]
    assert upward_imports(graph, layers) == [("package.low.tool", "package.high.user")]
    assert upward_imports(graph, ["package.high | package.low"]) == [
        ("package.high.user", "package.low.tool"),
        ("package.low.tool", "package.high.user"),
    ]


def test_a_circle_through_a_lazy_table_is_found(tmp_path):
    package = "_LAZY = {'Name': '.part'}\ndef __getattr__(name): ..."
    (tmp_path / "package" / "room").mkdir(parents=True)
    (tmp_path / "package" / "room" / "__init__.py").write_text(package)
    graph = write(tmp_path, room__part="from package.room import Name")
    assert circles(graph) == [["package.room", "package.room.part"]]


def test_a_circle_of_three_is_one_group(tmp_path):
    graph = write(
        tmp_path,
        a="import package.b",
        b="import package.c",
        c="import package.a",
        d="import package.a",
    )
    assert circles(graph) == [["package.a", "package.b", "package.c"]]


def test_texts_that_import_nothing_are_no_circles(tmp_path):
    text = '"""See `package.b`."""\nimport logging\nlogging.getLogger("package.b")\n"package.b"\n'
    graph = write(tmp_path, a=text, b="import package.a")
    assert circles(graph) == []
