import functools
import gc
import json
import math
import os
import subprocess
import sys
import types

import pytest

from hotloop.base.importing import (
    describe_exception,
    import_object,
    importable_name,
    long_imports,
    name_of,
    names_module,
)
from hotloop.envs import make_vec
from hotloop.errors import ConfigError, UnknownNameError


class Outer:
    class Inner:
        pass


def find(name):
    return import_object(name, kind="network", example="my_nets:Net")


def test_existing_names_are_imported():
    assert find("math:sin") is math.sin
    assert find(f"{__name__}:Outer.Inner") is Outer.Inner
    assert find(name_of(Outer.Inner)) is Outer.Inner


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Net", "there is no network 'Net': write `module:name`, such as `my_nets:Net`"),
        (":Net", "there is no network ':Net'"),
        ("my_nets:", "there is no network 'my_nets:'"),
        ("no_such_nets:Net", r"there is no module 'no_such_nets': check its"),
        ("math.no:Net", r"there is no module 'math.no': check"),
        ("./my/nets.py:Net", "name the module instead, `nets:Net`, and run this in the dir"),
        ("math:sine", "'math' has no 'sine'; did you mean 'sin'"),
    ],
)
def test_missing_names_are_rejected(name, message):
    with pytest.raises(UnknownNameError, match=message):
        find(name)


def test_modules_that_can_not_be_imported(tmp_path, monkeypatch):
    (tmp_path / "needs_more.py").write_text("import no_such_dependency\n")
    (tmp_path / "half_written.py").write_text("def f(:\n")
    (tmp_path / "ends_here.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="importing it raised ModuleNotFoundError: No module na"):
        find("needs_more:Net")
    with pytest.raises(ConfigError, match=r"raised SystemExit: 0 \(ends_here.py:2\)"):
        find("ends_here:Net")
    with pytest.raises(ConfigError, match="importing it raised SyntaxError"):
        find("half_written:f")


def test_a_file_with_the_name_of_another_module_is_named(tmp_path, monkeypatch):
    (tmp_path / "json.py").write_text("class Net: pass\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownNameError, match=r"no 'Net': json.py here has the name of another"):
        find("json:Net")
    with pytest.raises(UnknownNameError, match=r"'json:Net': json.py here has the name of another"):
        make_vec("json:Net", 1)


def test_objects_of_the_running_script_are_not_imported_again(tmp_path, monkeypatch):
    script = types.ModuleType("__main__")
    script.Net, script.__file__, script.__spec__ = Outer, str(tmp_path / "my_script.py"), None
    monkeypatch.setitem(sys.modules, "__main__", script)
    assert find("my_script:Net") is find("__main__:Net") is Outer
    monkeypatch.setattr(Outer, "__module__", "__main__")
    assert importable_name(Outer) == "my_script:Outer"


def test_an_object_of_another_script_gets_advice():
    with pytest.raises(UnknownNameError, match=r"'__main__:Net' is defined in the script that.*"):
        find("__main__:Net")
    with pytest.raises(UnknownNameError, match=r"move `Line` to a module beside the script, .*"):
        make_vec("__main__:Line", 1)


def test_names_that_can_not_be_imported_are_marked():
    assert name_of(Outer) == f"{__name__}:Outer"
    assert "<" in name_of(lambda: None)
    assert name_of(functools.partial(Outer)) == f"{__name__}:<partial Outer>"


def test_exceptions_in_a_few_words():
    with pytest.raises(ValueError) as caught:
        raise ValueError("first\nsecond")
    assert describe_exception(caught.value) == "ValueError: first"
    assert describe_exception(KeyError()) == "KeyError"


class WithoutText(Exception):
    def __str__(self):
        raise ValueError("no text")


def test_an_exception_whose_text_fails_is_named():
    assert describe_exception(WithoutText()) == "WithoutText: without a message"


SHOW_SETTINGS = """
from hotloop.base.figures import new_figure
new_figure(1, 1)
import matplotlib
print(*(matplotlib.rcParams[name] for name in ("text.usetex", "font.size")))
"""


def test_matplotlib_ignores_the_settings_of_the_current_directory(tmp_path):
    # LaTeX would be started, and reads any file.
    (tmp_path / "matplotlibrc").write_text("text.usetex: True\nfont.size: 3\n")
    own = tmp_path / "own"
    own.mkdir()
    (own / "matplotlibrc").write_text("font.size: 7\n")
    environ = {**os.environ, "MATPLOTLIBRC": str(own)}
    command = [sys.executable, "-c", SHOW_SETTINGS]
    output = subprocess.check_output(command, cwd=tmp_path, env=environ, text=True)
    assert output == "False 7.0\n"


def test_imports_are_not_searched_for_garbage(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    count = gc.get_freeze_count()
    try:
        with long_imports():
            assert not gc.isenabled()
        assert gc.isenabled()
        assert gc.get_freeze_count() > count
    finally:
        gc.unfreeze()
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    with long_imports():
        assert gc.isenabled()
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize(
    ("text", "is_named"),
    [
        ("my_envs:make", True),
        ("my.envs:Maze-v0", True),
        ("game:2048-v0", True),
        ("--env-id=my_envs:make", True),
        ("network=my_nets:Small,my_nets:Large", True),
        ("pettingzoo:my_games", True),
        ("piecewise:0=1,1=0;my_module:schedule", True),
        (json.dumps(["ppo", {"env_id": "my_envs:make"}]), True),
        ("linear:3e-4,0", False),
        ("learning_rate=log:1e-5,1e-2,7", False),
        ("epsilon=0.1:0.5:0.1", False),
        ("learning_rate=2**-7:2**-2:x2", False),
        ("lstm:64", False),
        ("cuda:0", False),
        ("hf://anna/walker", False),
        ("hotloop:CartPole", False),
        ('{"g": 1.62}', False),
        (json.dumps(["ppo", {"gamma": "linear:0.9,1", "env_kwargs": {"g": "a"}}]), False),
    ],
)
def test_a_module_is_named(text, is_named):
    assert names_module(text) is is_named
