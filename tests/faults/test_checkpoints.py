"""Checkpoints that are damaged: none is taken for whole, and one that is whole is named."""

import random
import shutil

import numpy as np
import pytest

from hotloop.errors import CheckpointError
from hotloop.runs import RunDirectory
from tests.faults.damage import BYTES, space
from tests.faults.trials import (
    KINDS,
    Failed,
    chooser,
    is_same,
    said_in_a_sentence,
    succeeded,
    times,
)

faults = pytest.mark.faults
WAYS = {**BYTES, "space": space}
_LOADS = ("load", "load_policy")


def _bits(arrays):
    return {name: (x.dtype, x.shape, np.asarray(x).tobytes()) for name, x in arrays.items()}


def _loaded(run, load):
    """What a checkpoint gives, in a form that can be compared."""
    checkpoints = RunDirectory.open(run).checkpoints
    if load == "load":
        checkpoint = checkpoints.load()
        network, snapshot, state = checkpoint.network, checkpoint.snapshot, checkpoint.state
        arrays = _bits(checkpoint.arrays())
    else:
        made, snapshot, state = checkpoints.load_policy()
        network, arrays = made.to_json(), {}
    scale = snapshot.obs_scale
    told = None if scale is None else (_bits({"m": scale.mean, "s": scale.std}), scale.clip)
    return network, snapshot.version, _bits(snapshot.params), told, state, arrays


def _damaged(source, target, seed):
    """Damage a file of the last checkpoint, at times of the two last ones; check what is told."""
    rng = random.Random(seed)
    shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns("timing", "*.png"))
    steps = sorted((target / "checkpoints").glob("step-*"))
    name = rng.choice(["policy.safetensors", "learner.safetensors", "state.json", "state.json"])
    how = rng.choice(list(WAYS))
    num_damaged = rng.choice([1, 1, 2, len(steps)])
    for step in steps[-num_damaged:]:
        content = (step / name).read_bytes()
        changed = WAYS[how](content, rng)
        while changed == content:
            changed = BYTES["flip"](content, rng)
        (step / name).write_bytes(changed)
    note = None
    for load in _LOADS:
        try:
            found = _loaded(target, load)
        except CheckpointError as error:
            told = str(error)
            if "cut short or damaged" not in told:
                raise Failed(f"{how} of {name}, {load}: {told[:300]}") from None
            # Where two are damaged by spaces alone, the second is whole nevertheless.
            whole = [x.name for x in steps[:-num_damaged]][-1:]
            if whole and how != "space" and whole[0] not in told:
                raise Failed(
                    f"{how} of {name}, {load}: {whole[0]} is whole, {told[:300]}"
                ) from None
            if not whole and how != "space" and "step-" in told.partition("):")[2]:
                raise Failed(f"{how} of {name}, {load}: none is whole, {told[:300]}") from None
        except Exception as error:
            raise Failed(f"{how} of {name}, {load}: {type(error).__name__}: {error}") from None
        else:
            if found != _loaded(source, load):
                raise Failed(f"{how} of {name}, {load}: it was used as if it were whole")
            is_unread = load == "load_policy" and name == "learner.safetensors"
            note = note if is_unread else "as if undamaged"
    shutil.rmtree(target)
    return note


def test_a_few_damaged_checkpoints(reference, tally, tmp_path):
    run = reference("plain")
    tally("a few damaged checkpoints").run(
        lambda seed: _damaged(run, tmp_path / str(seed), seed), range(times(40)), jobs=1
    )


@faults
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("kind", "count"), [("plain", 200), ("replay", 40)])
def test_damaged_checkpoints(reference, tally, tmp_path, kind, count):
    run, first = reference(kind), chooser(f"checkpoints {kind}").randrange(10**6)
    tally(f"damaged checkpoints, {kind}").run(
        lambda seed: _damaged(run, tmp_path / str(seed), seed),
        range(first, first + times(count)),
        jobs=1,
    )


@faults
@pytest.mark.timeout(600)
def test_damaged_replay_buffers(forks, reference, tally, tmp_path):
    """They are read by `resume` alone."""
    source, more = reference("replay"), ["--total-timesteps", 700]
    theirs = tmp_path / "undamaged"
    shutil.copytree(source, theirs, symlinks=True)
    succeeded(forks.run("resume", theirs, *more), "resume")

    def trial(seed):
        rng, run = random.Random(f"replay {seed}"), tmp_path / str(seed)
        shutil.copytree(source, run, symlinks=True)
        path = run / "checkpoints" / "last" / "replay.zip"
        how, change = rng.choice(list(BYTES.items()))
        content = path.read_bytes()
        changed = change(content, rng)
        path.write_bytes(changed)
        ended = forks.run("resume", run, *more)
        if ended.code == 0:
            succeeded(ended, "resume")
            is_same(run, theirs)
            note = "as if undamaged"
        else:
            said_in_a_sentence(ended)
            if not any(x in ended.err for x in ("cut short", "damaged")):
                raise Failed(f"{how}: {ended.told}")
            note = None
        shutil.rmtree(run)
        return note

    tally("damaged replay buffers").run(trial, range(times(24)))


def test_checkpoints_are_where_these_look(reference):
    """So that none of the above is about files that are not there."""
    run = reference("plain")
    assert KINDS["plain"][-1] == "128"
    steps = sorted((run / "checkpoints").glob("step-*"))
    assert len(steps) == 4
    for name in ("policy.safetensors", "learner.safetensors", "state.json"):
        assert all((step / name).stat().st_size for step in steps)
