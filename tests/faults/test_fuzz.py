"""Damaged files of every kind: readers and commands report them in a sentence, or succeed.

No damaged file with a checksum is used as if it were intact, and none runs code.
"""

import contextlib
import importlib
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import traceback
import warnings
from pathlib import Path

import pytest

import hotloop
from hotloop.errors import HotloopError
from hotloop.timing import RecordingError
from tests.faults import canary, profile_readers, readers, run_readers
from tests.faults.damage import BYTES, INSTEAD, damage
from tests.faults.forks import ProcessResult
from tests.faults.trials import KINDS, SEED, Failed, check_error_message, check_success, scale

faults = pytest.mark.faults
_READ_S = 20  # for one file, on a busy machine
_READ_KB = 2**20  # growth of the largest memory by one file
READERS = readers.READERS | run_readers.READERS | profile_readers.READERS
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
    from hotloop.base import documents

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


# --- every reader, in this process ----------------------------------------------------------------


@pytest.fixture(scope="session")
def artefacts(reference, tmp_path_factory):
    """Return a function that makes the folder of an artefact once."""
    folders = {}

    def get(name):
        if name not in folders:
            folders[name] = _make_artefact(name, get, reference, tmp_path_factory)
        return folders[name]

    return get


def _make_artefact(name, get, reference, tmp_path_factory):
    if name == "run":
        return reference("plain")
    if name == "timing":
        return reference("plain") / "timing"
    if name == "saved":
        return get("made profile") / "saved"
    if name == "profile":
        return get("made profile") / "profile"
    if name == "workers run":
        return reference("workers")
    folder = tmp_path_factory.mktemp("artefact")
    make = run_readers.maker(name, reference)
    for module in (profile_readers, readers):
        make = make or getattr(module, f"make_{name.removeprefix('made ')}", None)
    make(folder)
    return folder


class _TookTooLong(BaseException):
    """A reader hung. `except Exception` must not catch it."""


def _interrupt(number, frame):
    raise _TookTooLong


def _where(error, index):
    frame = traceback.extract_tb(error.__traceback__)[index]
    return f"{frame.filename}:{frame.lineno}"


def _read_damaged(reader, source, folder, intact, seed):
    """Damage a file and read it; return a note, or raise Failed."""
    rng = random.Random(f"{SEED} {reader.file} {seed}")
    path = readers.copy(source, folder, reader)
    before = path.read_bytes()
    is_sealed = reader.seal is not None and rng.random() < 0.5
    if is_sealed:
        reader.seal(path, rng)
        name = "a changed value"
    elif rng.random() < 0.85:
        name, change = rng.choice(list(BYTES.items()))
        path.write_bytes(change(before, rng))
    else:
        name, make = rng.choice(list(INSTEAD.items()))
        path.unlink()
        make(path)
    place = f"{seed}, {name} of {reader.file}"
    memory_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    signal.alarm(_READ_S)
    try:
        with canary.watch() as events, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = reader.read(folder)
            note = "refused" if found is None else "as if undamaged"
    except (HotloopError, RecordingError) as error:
        found, note = None, "refused"
        if not str(error) or len(str(error)) > 3000 or "\n" in str(error).strip():
            raise Failed(f"{place}: no sentence: {str(error)[:300]!r}") from None
    except FileNotFoundError:
        found, note = None, "refused"
    except _TookTooLong as error:
        raise Failed(f"{place}: took longer than {_READ_S} s in {_where(error, -2)}") from None
    except Exception as error:
        text = f"{type(error).__name__}: {str(error)[:200]}"
        raise Failed(f"{place}: {text} in {_where(error, -1)}") from None
    finally:
        signal.alarm(0)
    if events:
        raise Failed(f"{place}: it ran {events}")
    if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > memory_kb + _READ_KB:
        raise Failed(f"{place}: it took more than {_READ_KB >> 20} GiB of memory")
    # A file that is cut between two lines may be that of a killed process.
    is_prefix = (
        path.suffix == ".jsonl" and isinstance(found, list) and found == intact[: len(found)]
    )
    is_protected = (
        reader.has_checksum and not is_sealed and name not in ("nothing", "a link to nothing")
    )
    if is_protected and found is not None and found != intact and not is_prefix:
        raise Failed(f"{place}: it was used as if it were intact")
    shutil.rmtree(folder)
    return note


def _fuzz_reader(artefacts, tally, tmp_path, name, seeds):
    artefact, reader = READERS[name]
    source = artefacts(artefact)
    intact = reader.read(source)  # which imports what reading needs
    assert intact is not None
    previous = signal.signal(signal.SIGALRM, _interrupt)
    try:
        tally(f"{name}, read").run(
            lambda seed: _read_damaged(reader, source, tmp_path / str(seed), intact, seed),
            seeds,
            jobs=0,
        )
    finally:
        signal.signal(signal.SIGALRM, previous)


@faults
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", list(READERS))
def test_damaged_files_of_every_kind(artefacts, tally, tmp_path, name):
    _fuzz_reader(artefacts, tally, tmp_path, name, range(1000, 1000 + scale(1000)))


def test_the_canary_notices_code():
    with canary.watch() as events:
        subprocess.run(["true"], check=True)
        with contextlib.suppress(ImportError):
            importlib.import_module(canary.STRANGER)
    assert any(event.startswith("subprocess.Popen") for event in events)
    assert any(canary.STRANGER in event for event in events)


# Modules that read files from outside → their readers, or why there is none.
_OTHER_PROFILERS = ["austin.mojo", "austin.txt", "py-spy.txt", "speedscope.json", "torch.json.gz"]
_OPENERS = "it opens files for the other modules"
_BYTES = "it copies or hashes bytes of any kind"
READ_BY = {
    "bandits/parsing.py": ["rewards.npy", "rewards.csv"],
    "bandits/results.py": ["bandit.npz"],
    "base/documents.py": _OPENERS,
    "base/files.py": _OPENERS,
    "base/results_file.py": ["sweep.sqlite"],
    "cli/search_space.py": ["space.toml"],
    "experiments/policy_population.py": ["population.json"],
    "profiler/collect/samples.py": ["samples.jsonl"],
    "profiler/render/lines.py": ["source.py"],
    "profiler/session/kineto.py": ["gpu.json", "kineto.json"],
    "profiler/session/other_profilers/__init__.py": [*_OTHER_PROFILERS, "cprofile", "gecko"],
    "profiler/session/reading.py": ["profile.json"],
    "profiler/session/run_facts.py": ["cores.json"],
    "profiler/session/saving.py": ["session.npz"],
    "profiler/session/syntax.py": ["source.py"],
    "profiler/what_if/places.py": ["source.py"],
    "profiler/what_if/result.py": ["what-if.json"],
    "replay/saving.py": ["replay.zip"],
    "reports/bottleneck.py": ["cores.json"],
    "reports/run_page.py": _BYTES,
    "reports/self_play.py": ["self_play.json"],
    "reports/training_summary.py": ["cores.json"],
    "reports/workers.py": ["accounting.json"],
    "runs/checkpoints.py": ["state.json", "policy.safetensors", "learner.safetensors"],
    "runs/directory.py": ["config.json"],
    "runs/file_schemas.py": ["metrics.jsonl"],
    "runs/hub.py": ["listing of a repository", "published config.json"],
    "runs/module_digests.py": _BYTES,
    "runs/notebook.py": _BYTES,
    "runs/run_status.py": ["status.json"],
    "runs/tracker_files.py": ["events of TensorBoard", "records of W&B"],
    "runs/tracking.py": ["mlflow.json"],
    "timing/clocks.py": ["clocks.json"],
    "timing/reader.py": ["recording.hlt"],
    "training/opponent_pool.py": ["self-play, state.json", "self-play, snapshot"],
    "training/options/option_files.py": ["config.toml"],
    "training/recorded.py": ["data set", "metadata of a data set"],
    "training/several_policies.py": ["policies, config.json", "policies, state.json"],
}
_READS = re.compile(
    r"(read_regular|open_regular|documents\.read|sqlite3\.connect|hf_hub_download)\("
)


def test_every_module_that_reads_files_has_a_reader_here():
    root = Path(hotloop.__file__).parent
    modules = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if _READS.search(path.read_text(encoding="utf-8"))
    }
    assert modules <= READ_BY.keys()
    named = {name for names in READ_BY.values() if isinstance(names, list) for name in names}
    assert named <= READERS.keys()
