"""Damaged configurations, states and metrics: every command says so in a sentence, or copes."""

import contextlib
import json
import os
import random
import shutil
from pathlib import Path

import pytest

from tests.faults.damage import damage
from tests.faults.forks import Ended
from tests.faults.trials import KINDS, Failed, said_in_a_sentence, succeeded, times

faults = pytest.mark.faults
FILES = {
    "config.json": "config.json",
    "metrics.jsonl": "metrics.jsonl",
    "state.json": "checkpoints/last/state.json",
    "state.json with its digest": "checkpoints/last/state.json",
}


@pytest.fixture
def runs(forks, reference, tmp_path):
    """A directory of two good runs and one that is unfinished, which gets damaged."""
    folder = tmp_path / "runs"
    folder.mkdir()
    for name in ("good", "also-good"):
        shutil.copytree(reference("plain"), folder / name, symlinks=True)
    victim = folder / "victim"
    forks.run(*KINDS["plain"], "--run-dir", victim, die=[120, [str(victim)]])
    assert (victim / "checkpoints" / "last").is_symlink()
    return folder


def copied(source, target):
    """A copy of a run; the recording, which is large and which nobody changes, is linked."""
    shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns("timing"))
    (target / "timing").mkdir()
    for path in (source / "timing").iterdir():
        os.link(path, target / "timing" / path.name)
    return target


def seal(path):
    """Give a state the digest that whoever changes it on purpose would give it."""
    from hotloop.runs import checkpoints

    if not path.is_file():
        return
    with contextlib.suppress(Exception):  # it is no state at all
        state = json.loads(path.read_text())
        state["digest"] = checkpoints._digest_of_state(state)
        path.write_text(json.dumps(state))


def _refuse(constant):
    raise ValueError(f"no JSON: {constant}")


def _lists(ended, folder):
    """Check that `runs --json` tells of all runs, and of the good ones as good.

    Raises:
        Failed: it does not.
    """
    succeeded(ended, "runs")
    try:
        rows = {Path(x["path"]).name: x for x in json.loads(ended.out, parse_constant=_refuse)}
    except ValueError as error:
        raise Failed(f"runs --json: {error}") from None
    if any(rows.get(name, {}).get("status") != "finished" for name in ("good", "also-good")):
        raise Failed(f"runs lists { ({name: row.get('status') for name, row in rows.items()}) }")
    is_seen = any(os.path.lexists(folder / "victim" / x) for x in ("config.json", "metrics.jsonl"))
    if is_seen and "victim" not in rows:
        raise Failed("runs does not list it")


def _fuzzed(forks, runs, tmp_path, file, seed):
    """Damage a file of a run, list the runs, and run one more command."""
    rng = random.Random(f"{file} {seed}")
    folder = tmp_path / f"{file.replace(' ', '-')}-{seed}"
    folder.mkdir()
    for run in ("good", "also-good"):
        (folder / run).symlink_to(runs / run)
    victim = copied(runs / "victim", folder / "victim")
    how = damage(victim / FILES[file], rng)
    if file.endswith("digest"):
        seal(victim / FILES[file])
    further = {
        "eval": ["eval", victim, "--episodes", 1],
        "eval of an older one": ["eval", victim, "--episodes", 1, "--checkpoint", "best"],
        "resume": ["resume", victim, "--total-timesteps", 1536],
        "plot": ["plot", victim, folder / "good", "--output", folder / "curves.png"],
        "plot of it alone": ["plot", victim, "--output", folder / "curve.png", "--json"],
        "compare": ["compare", victim, folder / "good"],
        "report": ["report", victim],
        "export": ["export", victim, "--format", "numpy", "--output", folder / "export"],
        "runs": ["runs", folder],
    }
    # Each damage with each command at some time.
    command = list(further)[rng.randrange(len(further))]
    commands = [["runs", folder, "--json"], further[command]]
    told = folder / "told.json"
    asked = [[str(arg) for arg in one] for one in commands]
    child = forks.start("tests.faults.commands:run_all", asked, str(told))
    ended = child.wait(120.0)
    results = [Ended(*one) for one in json.loads(told.read_text())] if told.exists() else []
    for name, one in zip(("runs --json", command), results, strict=False):
        try:
            if name == "runs --json":
                _lists(one, folder)
            elif one.code != 0:
                said_in_a_sentence(one)
            else:
                succeeded(one, name)
        except Failed as failed:
            raise Failed(f"{how}, then {name}: {failed}") from None
    if len(results) < len(commands) or ended.code != 0:
        raise Failed(f"{how}, then {command}: the process ended, {ended.told}")
    shutil.rmtree(folder)
    return "told" if results[1].code else "coped with"


@pytest.mark.parametrize("file", ["config.json"])
def test_a_few_damaged_files(forks, runs, tally, tmp_path, file):
    tally(f"a few damaged {file}").run(
        lambda seed: _fuzzed(forks, runs, tmp_path, file, seed), range(times(12))
    )


@faults
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("file", list(FILES))
def test_damaged_files(forks, runs, tally, tmp_path, file):
    tally(f"damaged {file}").run(
        lambda seed: _fuzzed(forks, runs, tmp_path, file, seed), range(100, 100 + times(250))
    )
