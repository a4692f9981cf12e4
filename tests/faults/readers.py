"""Everything that hotloop reads from files: how a file is made, damaged, sealed anew and read."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import random
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hotloop import timing
from hotloop.algorithms import find
from hotloop.bandits.results import BanditResult
from hotloop.base import documents
from hotloop.base.line_checksums import LineChecksums
from hotloop.experiments import Results
from hotloop.profiler.render import html, text
from hotloop.profiler.session import saving as session_file
from hotloop.profiler.session.reading import read as read_session
from hotloop.replay import ReplayBuffer
from hotloop.replay.saving import _arrays_by_part
from hotloop.reports import learning_curves
from hotloop.runs import RunDirectory
from hotloop.runs.summary import summarize
from hotloop.timing import _format
from hotloop.training.checkpoint_state import CheckpointState
from hotloop.training.options import from_stored, option_files
from hotloop.training.resume import check_changes
from tests.faults import damage


@dataclasses.dataclass(frozen=True)
class Reader:
    """One kind of file.

    Attributes:
        file: Path of the file within the folder, a pattern.
        read: Reads the folder, and returns a value that tells whether it is used as it was.
        seal: Changes a value within the file and computes its checksums anew, as an attacker
            would. None for files without a structure that is worth it.
        has_checksum: Whether a damaged file must be refused, or read as if it were intact.
    """

    file: str
    read: Callable[[Path], Any]
    seal: Callable[[Path, random.Random], None] | None = None
    has_checksum: bool = True


# --- runs -----------------------------------------------------------------------------------------


def _read_config(folder: Path) -> Any:
    run = RunDirectory.open(folder)
    run.check_trusted(is_trusted=False)
    algorithm = find(run.config["algorithm"])
    config = from_stored(algorithm.config, run.config["config"])
    check_changes(config, run)
    summary = summarize(folder)
    learning_curves.read(folder)
    return vars(config), summary.env_id


def _read_metrics(folder: Path) -> Any:
    summarize(folder)
    return RunDirectory.open(folder).metrics()


def _bits(arrays: Any) -> Any:
    return {name: (str(x.dtype), x.shape, np.asarray(x).tobytes()) for name, x in arrays.items()}


def _read_checkpoint(folder: Path) -> Any:
    checkpoints = RunDirectory.open(folder).checkpoints
    checkpoint = checkpoints.load()
    state = CheckpointState.from_json(checkpoint.state)
    _, snapshot, _ = checkpoints.load_policy()
    return repr(state), _bits(snapshot.params), _bits(checkpoint.arrays())


def seal_json(path: Path, rng: random.Random) -> None:
    text = damage.change_json(path.read_text(), rng)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        path.write_text(text)
        return
    if isinstance(value, dict):
        value.pop("digest", None)
        path.write_text(json.dumps({**value, "digest": documents.digest(value)}))


def _seal_lines(path: Path, rng: random.Random) -> None:
    checksums, lines = LineChecksums(), []
    texts = path.read_text().splitlines()
    changed = rng.randrange(len(texts))
    for number, line in enumerate(texts):
        text = line.partition(', "checksum"')[0] + "}"
        lines.append(checksums.add(damage.change_json(text, rng) if number == changed else text))
    path.write_text("\n".join(lines) + "\n")


def seal_arrays(path: Path, rng: random.Random) -> None:
    """Rename, remove or change an array of a checkpoint."""
    from safetensors.numpy import load_file, save_file

    arrays = load_file(path)
    name = rng.choice(list(arrays))
    array = arrays.pop(name)
    change = rng.choice(["renamed", "missing", "shape", "dtype", "nan"])
    if change == "renamed":
        arrays[f"{name}x"] = array
    elif change == "shape":
        arrays[name] = np.zeros((2, 3), array.dtype)
    elif change == "dtype":
        arrays[name] = array.astype(np.int8)
    elif change == "nan":
        arrays[name] = np.full_like(array, -1)
    save_file(arrays, path)
    state_path = path.with_name("state.json")
    state = json.loads(state_path.read_text())
    state["files"][path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    state_path.write_text(json.dumps({**state, "digest": documents.digest(state)}))


# --- replay buffers, bandits, sweeps --------------------------------------------------------------


def make_replay(folder: Path) -> None:
    """Save a small replay buffer."""
    flags = {"terminated": ((), np.bool_), "truncated": ((), np.bool_)}
    fields = {"obs": ((3,), np.float32), "next_obs": ((3,), np.float32), "reward": ((), np.float32)}
    buffer = ReplayBuffer(capacity=40, fields={**fields, **flags}, seed=0)
    rng = np.random.default_rng(0)
    for step in range(60):
        obs = rng.standard_normal(3).astype(np.float32)
        row = {"obs": obs, "next_obs": obs + 1, "reward": 1.0}
        buffer.add(**row, terminated=step % 9 == 0, truncated=False)
    buffer.save(folder / "replay.zip")


def _read_replay(folder: Path) -> Any:
    buffer = ReplayBuffer.load(folder / "replay.zip")
    parts = _arrays_by_part(buffer)
    content = {name: b"".join(x.tobytes() for x in arrays) for name, arrays in parts.items()}
    buffer.sample(8)
    return content


def _rewrite_zip(path: Path, change: Callable[[str, bytes], bytes]) -> None:
    with zipfile.ZipFile(path) as archive:
        parts = {name: change(name, archive.read(name)) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)


def _seal_replay(path: Path, rng: random.Random) -> None:
    def change(name: str, content: bytes) -> bytes:
        if (name == "header.json") == is_header:
            return (
                damage.change_json(content.decode(), rng).encode()
                if is_header
                else (damage.flip(content, rng) if content else content)
            )
        return content

    is_header = rng.random() < 0.8
    _rewrite_zip(path, change)


def make_bandit(folder: Path) -> None:
    """Save the result of a small bandit."""
    from hotloop import bandits

    environment = bandits.GaussianRewards(num_arms=4)
    agent = bandits.EpsilonGreedy(epsilon=0.1)
    bandits.run(agent, environment, num_runs=8, num_steps=20).save(folder / "result.npz")


def _read_bandit(folder: Path) -> Any:
    return BanditResult.load(folder / "result.npz").to_dict(curves=True)


def _seal_npz(name: str) -> Callable[[Path, random.Random], None]:
    def seal(path: Path, rng: random.Random) -> None:
        with np.load(path) as file:
            arrays = {key: file[key] for key in file.files}
        if rng.random() < 0.8:
            text = damage.change_json(arrays[name].tobytes().decode(), rng)
            arrays[name] = np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8)
        else:
            key = rng.choice(sorted(arrays))
            array = arrays.pop(key)
            kinds = [array[:0], array[:1], np.zeros((2, 2)), np.zeros(3), np.array("text")]
            arrays[key] = kinds[rng.randrange(len(kinds))]
        np.savez_compressed(path, **arrays)

    return seal


def make_sweep(folder: Path) -> None:
    """Write a file of a sweep with two trials."""
    from tests.experiments.test_results import PLAN, finished

    results = Results(folder / "sweep.sqlite")
    results.plan = PLAN
    for number in (1, 2):
        results.add_trial(number, {"learning_rate": 0.1 * number}, {})
        results.claim(number, 1, 100, "tune", "0.1", "d")
        results.finish(finished(trial=number))
    results.close()


def _read_sweep(folder: Path) -> Any:
    results = Results(folder / "sweep.sqlite")
    try:
        return repr((results.plan, results.trials(), results.runs()))
    finally:
        results.close()


# --- configurations -------------------------------------------------------------------------------


def make_toml(folder: Path) -> None:
    """Save a configuration of PPO."""
    config = find("ppo").config(env_id="CartPole-v1", env_kwargs={"a": 1, "b": 2.0})
    option_files.save(str(folder / "config.toml"), config, "ppo")


def _read_toml(folder: Path) -> Any:
    options = option_files.read(str(folder / "config.toml"), find("ppo").config, "ppo")
    return repr(find("ppo").config(**options))


def change_toml(path: Path, rng: random.Random) -> None:
    lines = path.read_text().splitlines()
    values = [x.replace("null", '"none"').replace(":", "=") for x in damage.VALUES]
    values += ["inf", "-nan", "1979-05-27", "{}", "{a={a={}}}", "[" * 3000 + "]" * 3000]
    values += ["{a=" * 3000 + "1" + "}" * 3000, "'''x", '"hotloop_faults_stranger:make"', "0x7f"]
    number = rng.randrange(len(lines))
    name = lines[number].partition(" = ")[0]
    lines[number] = rng.choice([f"{name} = {rng.choice(values)}", f"[{name}]", f"{name}.x = 1"])
    path.write_text("\n".join(lines), errors="surrogateescape")


# --- profiles -------------------------------------------------------------------------------------


def _read_recording(folder: Path) -> Any:
    recordings, _ = timing.read_directory(folder)
    if not recordings:
        return None
    (recording,) = recordings
    timing.render(recording.tree())
    return repr(recording.threads), recording.events.tobytes(), repr(recording.spans)


def _change_recording(path: Path, rng: random.Random) -> None:
    """Change some words of an unclosed recording, which has no checksum."""
    content = bytearray(path.read_bytes())
    content[_format.CHECKSUM_OFFSET : _format.CHECKSUM_OFFSET + 8] = bytes(8)
    segment = _format.HEADER_SIZE
    areas = [(8, 64), (segment, segment + 96), (segment + 512, segment + 512 + 128 * 20)]
    areas += [(segment + 512 + 128 * 256, len(content))]
    for _ in range(rng.choice([1, 1, 3, 20])):
        first, last = rng.choice(areas)
        place = rng.randrange(first // 8, last // 8) * 8
        word = rng.choice([0, 1, 2, 2**31, 2**62, 2**63 - 1, 2**63, 2**64 - 1, rng.getrandbits(64)])
        content[place : place + 8] = word.to_bytes(8, "little")
    path.write_bytes(content)


def _render(session: Any) -> str:
    html.render(session)
    return text.render(session)


def _read_profile(folder: Path) -> Any:
    session = read_session(folder)
    # A damaged part may be left out, if the report says so.
    report = text.render(session)
    return report if not session.problems else None


def _read_session_file(folder: Path) -> Any:
    return _render(session_file.load(folder / "session.npz"))


def make_profile(folder: Path) -> None:
    """Record a small program, with a GPU window, and save its session too."""
    from tests.profiler.gpu_windows import WINDOW_NS
    from tests.profiler.programs import record, write
    from tests.profiler.session.test_gpu import one_update, program

    code = "import time, threading\nfrom hotloop.timing import span\n"
    code += "def work():\n    for k in range(30):\n"
    code += "        with span('env_step'), span('inner', kind='wait'): time.sleep(0.01)\n"
    code += "threading.Thread(target=work).start()\nwork()\n"
    _, session = record(folder, str(write(folder, code)))
    header, events = program(one_update, ms=1).window()
    shift = session.main.start_ns + 10**6 - WINDOW_NS
    for name in ("began_ns", "start_ns", "end_ns", "stopped_ns", "written_ns"):
        header[name] += shift
    header["markers"] = [[time_ns + shift for time_ns in pair] for pair in header["markers"]]
    header |= {"pid": session.main.pid, "trace": "0.kineto.json", "looks": []}
    profile = folder / "profile"
    metadata = {"command": ["python", "script.py"], "options": [], "exit_code": 0}
    metadata |= {"started": "2026-01-31T12:00:00+0000", "problems": []}
    metadata |= {"start_ns": session.start_ns, "end_ns": session.end_ns}
    (profile / "profile.json").write_text(json.dumps(documents.sealed(metadata)))
    (profile / "timing" / "0.gpu.json").write_text(json.dumps(header))
    (profile / "timing" / "0.kineto.json").write_text(json.dumps({"traceEvents": events}))
    session = read_session(profile)
    assert session.gpu
    assert session.main.samples
    (folder / "saved").mkdir()
    session_file.save(session, folder / "saved" / "session.npz")


def change_json_file(path: Path, rng: random.Random) -> None:
    path.write_text(damage.change_json(path.read_text(), rng))


# Name → (artefact of `make`, reader).
READERS: dict[str, tuple[str, Reader]] = {
    "config.json": ("run", Reader("config.json", _read_config, change_json_file, False)),
    "metrics.jsonl": ("run", Reader("metrics.jsonl", _read_metrics, _seal_lines)),
    "state.json": ("run", Reader("checkpoints/last/state.json", _read_checkpoint, seal_json)),
    "policy.safetensors": (
        "run",
        Reader("checkpoints/last/policy.safetensors", _read_checkpoint, seal_arrays),
    ),
    "learner.safetensors": (
        "run",
        Reader("checkpoints/last/learner.safetensors", _read_checkpoint, seal_arrays),
    ),
    "cores.json": ("run", Reader("cores.json", _read_profile, seal_json)),
    "replay.zip": ("replay", Reader("replay.zip", _read_replay, _seal_replay)),
    "bandit.npz": ("bandit", Reader("result.npz", _read_bandit, _seal_npz("about"))),
    "sweep.sqlite": ("sweep", Reader("sweep.sqlite", _read_sweep)),
    "config.toml": ("toml", Reader("config.toml", _read_toml, change_toml, False)),
    "recording.hlt": ("timing", Reader("*.hlt", _read_recording, _change_recording)),
    "profile.json": ("profile", Reader("profile.json", _read_profile, seal_json)),
    "samples.jsonl": ("profile", Reader("timing/*.samples.jsonl", _read_profile, _seal_lines)),
    "gpu.json": ("profile", Reader("timing/*.gpu.json", _read_profile, change_json_file, False)),
    "kineto.json": (
        "profile",
        Reader("timing/*.kineto.json", _read_profile, change_json_file, False),
    ),
    "session.npz": (
        "saved",
        Reader("session.npz", _read_session_file, _seal_npz("session")),
    ),
}


def copy(source: Path, target: Path, reader: Reader) -> Path:
    """Copy a folder, and return the path of the reader's file. Other files are linked."""
    (file,) = source.glob(reader.file)
    shutil.copytree(source, target, symlinks=True, copy_function=os.link)
    path = target / file.relative_to(source)
    for changed in {path, *path.parent.glob("state.json")}:
        content = changed.read_bytes()
        changed.unlink()
        changed.write_bytes(content)
    return path
