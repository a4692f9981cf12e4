"""The modules of a signed run: the same ones, edited ones, and others of the same name."""

import shutil
import sys
import warnings

import pytest

from hotloop.errors import UntrustedError
from hotloop.runs import RunDirectory, module_digests
from tests.runs.test_trust import create, state_home

__all__ = ["state_home"]

MODULES = {
    "my_envs.py": "import math\nfrom helpers import maze\nfrom my_package.parts import Part\n",
    "helpers/__init__.py": "",
    "helpers/maze.py": "WALLS = 3\n",
    "my_package/__init__.py": "from . import parts\n",
    "my_package/parts.py": "from .deeper import thing\nclass Part: pass\n",
    "my_package/deeper.py": "thing = 1\n",
    "unrelated.py": "",
}


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Enter a directory with modules, of which my_envs.py imports all but one."""
    folder = tmp_path / "project"
    for name, text in MODULES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def run(tmp_path, project):
    return create(tmp_path, env_id="my_envs:Walk-v0", network="my_package.deeper:thing").path


def check(run):
    RunDirectory.open(run).check_trusted(is_trusted=False)


def test_unchanged_modules_are_accepted(tmp_path, run, project, monkeypatch):
    loaded = set(sys.modules)
    stored = RunDirectory.open(run).config["modules"]
    assert set(stored) == {"my_envs", "my_package.deeper"}
    assert stored["my_envs"]["file"] == str(project / "my_envs.py")
    check(run)
    # A copied run, with a copied project.
    shutil.copytree(project, tmp_path / "copy")
    shutil.move(run, tmp_path / "moved")
    monkeypatch.chdir(tmp_path / "copy")
    (tmp_path / "copy" / "unrelated.py").write_text("x = 1\n")
    check(tmp_path / "moved")
    # Without the modules, importing them raises the error.
    monkeypatch.chdir(tmp_path)
    check(tmp_path / "moved")
    assert not {"my_envs", "helpers", "my_package"} & (set(sys.modules) - loaded)


@pytest.mark.parametrize("name", [name for name in MODULES if name != "unrelated.py"])
def test_an_edited_module_is_reported(run, project, name):
    with (project / name).open("a") as file:
        file.write("x = 1\n")
    with pytest.warns(RuntimeWarning, match=r"or a module that it imports, was changed since"):
        check(run)


@pytest.mark.parametrize("name", [name for name in MODULES if name != "unrelated.py"])
def test_another_module_of_the_same_name_is_refused(tmp_path, run, project, monkeypatch, name):
    other = tmp_path / "other"
    shutil.copytree(project, other)
    with (other / name).open("a") as file:
        file.write("x = 1\n")
    monkeypatch.chdir(other)
    with pytest.raises(UntrustedError, match=r"would import .*other/.*, not .*project/.* --trust"):
        check(run)
    with pytest.raises(UntrustedError, match="would import"):
        RunDirectory.open(run).load_policy()
    RunDirectory.open(run).check_trusted(is_trusted=True)


def test_a_module_that_training_did_not_find_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = create(tmp_path, env_id="my_envs:Walk-v0").path
    (tmp_path / "my_envs.py").write_text("")
    with pytest.raises(UntrustedError, match=r"would import .*my_envs.py: change to"):
        check(path)


def test_a_resumed_run_stores_the_edited_modules(run, project):
    (project / "my_envs.py").write_text("x = 1\n")
    RunDirectory.open(run).sign()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(run)


def test_libraries_and_broken_modules_have_digests(tmp_path, monkeypatch):
    (tmp_path / "broken.py").write_text("def f(:\n")
    monkeypatch.chdir(tmp_path)
    found = module_digests.digests(["broken", "numpy.linalg", "json", "no_such_module", "a.b"])
    assert set(found) == {"broken", "numpy.linalg", "json"}


def test_hotloops_own_modules_are_no_modules_of_the_user(tmp_path, monkeypatch):
    """hotloop may run from a clone, and an update of it changes no module of the user's."""
    (tmp_path / "mine.py").write_text("import hotloop.types\nimport hotloop\n")
    monkeypatch.chdir(tmp_path)
    assert set(module_digests.imported_from(["mine"])) == {"mine"}
    assert set(module_digests.digests(["mine", "hotloop.types"])) == {"mine"}
