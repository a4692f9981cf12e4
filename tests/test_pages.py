"""The code and commands of README.md and the pages work."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hotloop import bandits, timing
from hotloop.cli import main
from tests.warm_pool import use_warm_pool

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# tests/docs/test_tutorials.py runs the tutorials, which mix files and commands.
RUN = [path for path in PAGES if path.parent.name != "tutorials"]
NAMES = [path.relative_to(ROOT).with_suffix("").as_posix() for path in RUN]
# Number of steps and episodes in a page's code.
MOST = {"total_timesteps": 512, "num_runs": 50}


@pytest.mark.parametrize("page", RUN, ids=NAMES)
def test_python_runs_as_it_stands(page, tmp_path, monkeypatch, capsys):
    """Run the blocks of a page in order, since they build on each other."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    use_warm_pool(monkeypatch)
    for play in (bandits.run, bandits.compare):
        monkeypatch.setitem(play.__kwdefaults__, "num_runs", MOST["num_runs"])
    names = {"__name__": "page"}
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        block = re.sub(
            r"\b(total_timesteps|num_runs)=([\de_]+)",
            lambda option: f"{option[1]}={min(int(float(option[2])), MOST[option[1]])}",
            block,
        )
        file = re.match(r"# (\w+\.py)\n", block)
        if file:  # later blocks import this file
            Path(file[1]).write_text(block)
            monkeypatch.delitem(sys.modules, file[1].removesuffix(".py"), raising=False)
        else:
            exec(compile(block, page.name, "exec"), names)
    timing.stop()


SHORTER = {"200000": "1024", "50000": "1024", "1-5": "1-2"}


@pytest.mark.parametrize("execution", ["eager", pytest.param("compile", marks=pytest.mark.slow)])
def test_the_readmes_commands(tmp_path, monkeypatch, capsys, execution):
    """The commands run with fewer steps and seeds."""
    monkeypatch.chdir(tmp_path)
    use_warm_pool(monkeypatch)
    shutil.copytree(ROOT / "examples", "examples")
    blocks = re.findall(r"^```\n(.*?)^```", PAGES[0].read_text(), re.MULTILINE | re.DOTALL)
    commands = re.findall(r"^\$ hotloop (.*)$", "\n".join(blocks), re.MULTILINE)
    assert {command.split()[0] for command in commands} == {"train", "eval", "profile", "compare"}
    for command in commands:
        args = [{**SHORTER, "compile": execution}.get(arg, arg) for arg in shlex.split(command)]
        if args[0] == "profile":
            args += ["--updates", "2", "--rows", "300"]
        if args[0] == "train":
            args += ["--update-epochs", "1"]
        try:
            code = main(args)
        except SystemExit as stop:
            code = stop.code
        assert code == 0, capsys.readouterr().err
        if args[0] == "eval":
            assert re.search(r"mean return .+ ± .+ over 100 episodes", capsys.readouterr().out)


@pytest.mark.parametrize("target", ["demo", "test", "test-all", "lint", "bench"])
def test_the_makefile_has_the_targets_of_the_readme(target):
    done = subprocess.run(
        ["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout


def test_links_between_pages_resolve():
    for page in PAGES:
        for link in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name}: {link}"
