"""Damaged checkpoints: none is accepted, and the error names an intact one."""

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
    check_error_message,
    check_same_run,
    check_success,
    make_rng,
    scale,
)

faults = pytest.mark.faults
DAMAGES = {**BYTES, "space": space}
_LOADERS = ("load", "load_policy")


def _bits(arrays):
    return {name: (x.dtype, x.shape, np.asarray(x).tobytes()) for name, x in arrays.items()}


def _load(run, load):
    """Load a checkpoint in a form that can be compared."""
    checkpoints = RunDirectory.open(run).checkpoints
    if load == "load":
        checkpoint = checkpoints.load()
        network, snapshot, state = checkpoint.network, checkpoint.snapshot, checkpoint.state
        arrays = _bits(checkpoint.arrays())
    else:
        network_object, snapshot, state = checkpoints.load_policy()
        network, arrays = network_object.to_json(), {}
    scale = snapshot.obs_scale
    scale_bits = None if scale is None else (_bits({"m": scale.mean, "s": scale.std}), scale.clip)
    return network, snapshot.version, _bits(snapshot.params), scale_bits, state, arrays


def _damage_and_load(source, target, seed):
    """Damage a file of the last checkpoints; check the errors of loading."""
    rng = random.Random(seed)
    shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns("timing", "*.png"))
    steps = sorted((target / "checkpoints").glob("step-*"))
    name = rng.choice(["policy.safetensors", "learner.safetensors", "state.json", "state.json"])
    damage = rng.choice(list(DAMAGES))
    num_damaged = rng.choice([1, 1, 2, len(steps)])
    for step in steps[-num_damaged:]:
        content = (step / name).read_bytes()
        changed = DAMAGES[damage](content, rng)
        while changed == content:
            changed = BYTES["flip"](content, rng)
        (step / name).write_bytes(changed)
    note = None
    for load in _LOADERS:
        try:
            loaded = _load(target, load)
        except CheckpointError as error:
            message = str(error)
            if "cut short or damaged" not in message:
                raise Failed(f"{damage} of {name}, {load}: {message[:300]}") from None
            # Checkpoints that are damaged by spaces alone are still intact.
            intact = [x.name for x in steps[:-num_damaged]][-1:]
            if intact and damage != "space" and intact[0] not in message:
                raise Failed(
                    f"{damage} of {name}, {load}: {intact[0]} is intact, {message[:300]}"
                ) from None
            if not intact and damage != "space" and "step-" in message.partition("):")[2]:
                raise Failed(
                    f"{damage} of {name}, {load}: none is intact, {message[:300]}"
                ) from None
        except Exception as error:
            raise Failed(f"{damage} of {name}, {load}: {type(error).__name__}: {error}") from None
        else:
            if loaded != _load(source, load):
                raise Failed(f"{damage} of {name}, {load}: it was loaded as if it were intact")
            is_unread = load == "load_policy" and name == "learner.safetensors"
            note = note if is_unread else "as if undamaged"
    shutil.rmtree(target)
    return note


@faults
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("kind", "count"), [("plain", 200), ("replay", 40)])
def test_damaged_checkpoints(reference, tally, tmp_path, kind, count):
    run, first = reference(kind), make_rng(f"checkpoints {kind}").randrange(10**6)
    tally(f"damaged checkpoints, {kind}").run(
        lambda seed: _damage_and_load(run, tmp_path / str(seed), seed),
        range(first, first + scale(count)),
        jobs=1,
    )


@faults
@pytest.mark.timeout(600)
def test_damaged_replay_buffers(forks, reference, tally, tmp_path):
    """Only `resume` reads them."""
    source, more = reference("replay"), ["--total-timesteps", 700]
    undamaged = tmp_path / "undamaged"
    shutil.copytree(source, undamaged, symlinks=True)
    check_success(forks.run("resume", undamaged, *more), "resume")

    def trial(seed):
        rng, run = random.Random(f"replay {seed}"), tmp_path / str(seed)
        shutil.copytree(source, run, symlinks=True)
        path = run / "checkpoints" / "last" / "replay.zip"
        damage, change = rng.choice(list(BYTES.items()))
        content = path.read_bytes()
        changed = change(content, rng)
        path.write_bytes(changed)
        result = forks.run("resume", run, *more)
        if result.code == 0:
            check_success(result, "resume")
            check_same_run(run, undamaged)
            note = "as if undamaged"
        else:
            check_error_message(result)
            if not any(x in result.err for x in ("cut short", "damaged")):
                raise Failed(f"{damage}: {result.summary}")
            note = None
        shutil.rmtree(run)
        return note

    tally("damaged replay buffers").run(trial, range(scale(24)))


def test_the_damaged_files_exist(reference):
    """Check that the files that the tests damage exist."""
    run = reference("plain")
    assert KINDS["plain"][-1] == "128"
    steps = sorted((run / "checkpoints").glob("step-*"))
    assert len(steps) == 4
    for name in ("policy.safetensors", "learner.safetensors", "state.json"):
        assert all((step / name).stat().st_size for step in steps)
