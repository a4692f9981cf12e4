"""Damaged configurations, states and metrics: commands report them in a sentence, or succeed."""

import contextlib
import json
import os
import random
import shutil
from pathlib import Path

import pytest

from tests.faults.damage import damage
from tests.faults.forks import ProcessResult
from tests.faults.trials import KINDS, Failed, check_error_message, check_success, scale

faults = pytest.mark.faults
FILES = {
    "config.json": "config.json",
    "metrics.jsonl": "metrics.jsonl",
    "state.json": "checkpoints/last/state.json",
    "state.json with its digest": "checkpoints/last/state.json",
}


@pytest.fixture
def runs(forks, reference, tmp_path):
    """Directory with two good runs and an unfinished one, which gets damaged."""
    folder = tmp_path / "runs"
    folder.mkdir()
    for name in ("good", "also-good"):
        shutil.copytree(reference("plain"), folder / name, symlinks=True)
    victim = folder / "victim"
    forks.run(*KINDS["plain"], "--run-dir", victim, die=[120, [str(victim)]])
    assert (victim / "checkpoints" / "last").is_symlink()
    return folder


def copy_run(source, target):
    """Copy a run. The large recording, which does not change, is linked."""
    shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns("timing"))
    (target / "timing").mkdir()
    for path in (source / "timing").iterdir():
        os.link(path, target / "timing" / path.name)
    return target


def seal(path):
    """Update the digest of a state, as a deliberate change would."""
    from hotloop import documents

    if not path.is_file():
        return
    with contextlib.suppress(Exception):  # the file holds no state
        state = json.loads(path.read_text())
        state["digest"] = documents.digest(state)
        path.write_text(json.dumps(state))


def _refuse(constant):
    raise ValueError(f"no JSON: {constant}")


def _check_list(result, folder):
    """Check that `runs --json` lists all runs, and the good ones as finished.

    Raises:
        Failed: It does not.
    """
    check_success(result, "runs")
    try:
        rows = {Path(x["path"]).name: x for x in json.loads(result.out, parse_constant=_refuse)}
    except ValueError as error:
        raise Failed(f"runs --json: {error}") from None
    if any(rows.get(name, {}).get("status") != "finished" for name in ("good", "also-good")):
        raise Failed(f"runs lists { ({name: row.get('status') for name, row in rows.items()}) }")
    is_seen = any(os.path.lexists(folder / "victim" / x) for x in ("config.json", "metrics.jsonl"))
    if is_seen and "victim" not in rows:
        raise Failed("runs does not list it")


def _fuzz(forks, runs, tmp_path, file, seed):
    """Damage a file of a run, list the runs, and run one more command."""
    rng = random.Random(f"{file} {seed}")
    folder = tmp_path / f"{file.replace(' ', '-')}-{seed}"
    folder.mkdir()
    for run in ("good", "also-good"):
        (folder / run).symlink_to(runs / run)
    victim = copy_run(runs / "victim", folder / "victim")
    damage_name = damage(victim / FILES[file], rng)
    if file.endswith("digest"):
        seal(victim / FILES[file])
    candidates = {
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
    # Over many seeds, each kind of damage meets each command.
    command = list(candidates)[rng.randrange(len(candidates))]
    commands = [["runs", folder, "--json"], candidates[command]]
    path = folder / "results.json"
    arguments = [[str(arg) for arg in command] for command in commands]
    child = forks.start("tests.faults.commands:run_all", arguments, str(path))
    process_result = child.wait(120.0)
    results = [ProcessResult(*x) for x in json.loads(path.read_text())] if path.exists() else []
    for name, result in zip(("runs --json", command), results, strict=False):
        try:
            if name == "runs --json":
                _check_list(result, folder)
            elif result.code != 0:
                check_error_message(result)
            else:
                check_success(result, name)
        except Failed as failed:
            raise Failed(f"{damage_name}, then {name}: {failed}") from None
    if len(results) < len(commands) or process_result.code != 0:
        raise Failed(f"{damage_name}, then {command}: the process ended, {process_result.summary}")
    shutil.rmtree(folder)
    return "reported" if results[1].code else "no error"


@pytest.mark.parametrize("file", ["config.json"])
def test_a_few_damaged_files(forks, runs, tally, tmp_path, file):
    tally(f"a few damaged {file}").run(
        lambda seed: _fuzz(forks, runs, tmp_path, file, seed), range(scale(12))
    )


@faults
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("file", list(FILES))
def test_damaged_files(forks, runs, tally, tmp_path, file):
    tally(f"damaged {file}").run(
        lambda seed: _fuzz(forks, runs, tmp_path, file, seed), range(100, 100 + scale(250))
    )
