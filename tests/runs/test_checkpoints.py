import json
import os
import resource
import shutil
from dataclasses import replace

import numpy as np
import pytest

from hotloop.base import documents, files
from hotloop.errors import CheckpointError, OutputError, RunDirectoryError
from hotloop.policies import ObsScale, PolicySnapshot, actor_critic
from hotloop.runs import Checkpoint, Checkpoints
from tests.policies.nets import Spaces
from tests.policies.test_policies import BOX, obs_spec


def checkpoint(timesteps, *, value=0.0, obs_scale=None):
    network = actor_critic(Spaces(obs_spec(4), BOX), hidden_sizes=(5,))
    return Checkpoint(
        network=network.to_json(),
        snapshot=PolicySnapshot(
            version=7, params=network.initial_parameters(0), obs_scale=obs_scale
        ),
        arrays=lambda: {"adam.mean": np.full(3, value, np.float32), "step": np.array(5)},
        state={"timesteps": timesteps, "rng": {"state": 2**127}},
    )


def steps(checkpoints):
    return [name for name in checkpoints.names() if name.startswith("step-")]


def test_round_trip(tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    scale = ObsScale(np.arange(4, dtype=np.float32), np.ones(4, np.float32), 10.0)
    saved = checkpoint(128, value=0.5, obs_scale=scale)
    checkpoints.save(saved)
    loaded = checkpoints.load()
    assert loaded.network == saved.network
    assert loaded.snapshot.version == 7
    assert loaded.state == saved.state
    for name, array in saved.snapshot.params.items():
        np.testing.assert_array_equal(loaded.snapshot.params[name], array)
    assert loaded.snapshot.params.keys() == saved.snapshot.params.keys()
    for name, array in saved.arrays().items():
        np.testing.assert_array_equal(loaded.arrays()[name], array)
    np.testing.assert_array_equal(loaded.snapshot.obs_scale.mean, scale.mean)
    assert loaded.snapshot.obs_scale.clip == 10.0
    assert checkpoints.names() == ["last", "step-000000000128"]
    assert checkpoints.load_policy()[2] == saved.state


@pytest.mark.parametrize("value", [np.nan, np.inf, -1e30])
def test_a_policy_whose_actions_mean_nothing_is_refused(tmp_path, value):
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    checkpoints.save(checkpoint(64), keep=9)
    for step in (128, 192):
        saved = checkpoint(step)
        next(iter(saved.snapshot.params.values())).flat[1] = value
        checkpoints.save(saved, keep=9)
    message = r"damaged \(`.*` of the policy has NaN, infinite or huge .* is step-0*64,"
    for load in (checkpoints.load, checkpoints.load_policy):
        with pytest.raises(CheckpointError, match=message):
            load()


def test_linked_and_newest_checkpoints_stay(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(checkpoint(1), names=("last", "best"), keep=2)
    for step in range(2, 7):
        checkpoints.save(checkpoint(step), keep=2)
    assert steps(checkpoints) == [f"step-{k:012}" for k in (1, 4, 5, 6)]
    assert checkpoints.load("best").state["timesteps"] == 1
    assert checkpoints.load("last").state["timesteps"] == 6
    checkpoints.save(checkpoint(7), names=("last", "best"), keep=0)
    assert checkpoints.names() == ["best", "last", "step-000000000007"]


def test_rewinding_removes_later_checkpoints(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for step in range(1, 5):
        checkpoints.save(checkpoint(step), names=("last", "best"), keep=9)
    for best, names in ((1, ["best", "last"]), (None, ["last"])):
        second = checkpoints.load("step-000000000002")
        checkpoints.rewind(second, best=best)
        assert checkpoints.load().state["timesteps"] == 2
        checkpoints.remove_later(second)
        assert checkpoints.names() == [*names, "step-000000000001", "step-000000000002"]
        if best:
            assert checkpoints.load("best").state["timesteps"] == 1


def test_checkpoints_of_huge_runs_are_in_the_order_of_their_steps(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    numbers = [10**12 - 2, 10**12 - 1, 10**12]
    for step in numbers:
        checkpoints.save(checkpoint(step), keep=1)
    assert checkpoints.names() == ["last", *[f"step-{step}" for step in numbers[1:]]]
    (tmp_path / "last").unlink()
    assert checkpoints.load().state["timesteps"] == numbers[2]
    checkpoints.remove_later(checkpoint(numbers[1]))
    assert checkpoints.names() == [f"step-{numbers[1]}"]


def test_a_linked_checkpoint_is_never_rewritten(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path)
    folder = checkpoints.save(checkpoint(1, value=1.0))
    inode = folder.stat().st_ino
    checkpoints.save(checkpoint(1, value=1.0), names=("best", "last"))
    assert folder.stat().st_ino == inode
    assert checkpoints.names() == ["best", "last", "step-000000000001"]


def test_a_training_may_save_while_a_checkpoint_is_read(tmp_path, monkeypatch):
    """The link changes and its old target is deleted between reading two files."""
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(checkpoint(1, value=1.0))
    read = files.read_regular

    def read_then_save(path):
        content = read(path)
        if path.parent.name.endswith("1"):
            checkpoints.save(checkpoint(2, value=2.0))
        return content

    monkeypatch.setattr("hotloop.runs.checkpoints.read_regular", read_then_save)
    loaded = checkpoints.load()
    assert loaded.state["timesteps"] == loaded.arrays()["adam.mean"][0] == 2


def test_a_failed_write_keeps_the_checkpoint_before(tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    checkpoints.save(checkpoint(1))
    # A file size limit of 100 bytes acts like a full disk.
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(RunDirectoryError, match=r"can't be written.*free some space"):
            checkpoints.save(checkpoint(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert checkpoints.load().state["timesteps"] == 1
    assert sorted(os.listdir(checkpoints.path)) == ["last", "step-000000000001"]


def test_remains_of_a_killed_process_do_no_harm(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(checkpoint(1, value=1.0))
    # The process was killed while writing, after renaming and while linking.
    shutil.copytree(tmp_path / "step-000000000001", tmp_path / ".step-000000000002.tmp")
    shutil.copytree(tmp_path / "step-000000000001", tmp_path / "step-000000000002")
    (tmp_path / ".last.tmp").symlink_to("step-000000000002")
    first = checkpoints.load()
    assert first.state["timesteps"] == 1
    checkpoints.rewind(first, best=None)
    (tmp_path / ".last.tmp").symlink_to("step-000000000002")
    checkpoints.save(checkpoint(2, value=2.0), keep=1)
    assert checkpoints.load().arrays()["adam.mean"][0] == 2.0
    assert sorted(os.listdir(tmp_path)) == ["last", "step-000000000001", "step-000000000002"]
    (tmp_path / "last").unlink()  # the process was killed before the first link
    assert checkpoints.load().state["timesteps"] == 2


def test_damaged_checkpoints_are_refused(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    with pytest.raises(CheckpointError, match="has no checkpoint 'last': it has none"):
        checkpoints.load()
    folder = checkpoints.save(checkpoint(1))
    with pytest.raises(CheckpointError, match="no checkpoint 'best': it has last, step-"):
        checkpoints.load("best")
    for name in ("policy", "learner"):
        tensors = (folder / f"{name}.safetensors").read_bytes()
        (folder / f"{name}.safetensors").write_bytes(tensors[: len(tensors) // 2])
        with pytest.raises(CheckpointError, match=r"cut short or damaged.*start a new training"):
            checkpoints.load()
        (folder / f"{name}.safetensors").write_bytes(tensors)
    state = (folder / "state.json").read_text()
    (folder / "state.json").unlink()
    with pytest.raises(CheckpointError, match=r"cut short or damaged \(state.json: No such file"):
        checkpoints.load()
    assert checkpoints.has_any()
    for text in (state[:40], "[]", "{}"):
        (folder / "state.json").write_text(text)
        with pytest.raises(CheckpointError, match="cut short or damaged"):
            checkpoints.load()
    for version, advice in ((99, "upgrade hotloop"), (1, "start a new training")):
        newer = {**json.loads(state), "checkpoint_version": version}
        newer["digest"] = documents.digest(newer)
        (folder / "state.json").write_text(json.dumps(newer))
        with pytest.raises(CheckpointError, match=f"version {version}.*{advice}"):
            checkpoints.load()


def checkpoint_with_files(timesteps, content):
    def write(path):
        path.write_text(content)

    return replace(checkpoint(timesteps), files={"replay.zip": write, "notes.txt": write})


def stored_files(tmp_path):
    return {
        path.parent.name: path.read_text()
        for path in tmp_path.glob("step-*/replay.zip")
        if (path.parent / "notes.txt").read_text() == path.read_text()
    }


def test_only_the_last_checkpoint_keeps_large_files(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for step in range(1, 5):
        names = ("best", "last") if step == 2 else ("last",)
        checkpoints.save(checkpoint_with_files(step, f"of {step}"), names=names, keep=2)
        assert stored_files(tmp_path) == {f"step-{step:012}": f"of {step}"}
    # Linked and kept checkpoints have all other files.
    assert steps(checkpoints) == [f"step-{k:012}" for k in (1, 2, 3, 4)]
    for name in ("best", "step-000000000003", "last"):
        assert checkpoints.load(name).arrays()["step"] == 5
    names = sorted(os.listdir(tmp_path / "best"))
    # Files of the user stay.
    assert names == ["learner.safetensors", "notes.txt", "policy.safetensors", "state.json"]
    # A training without large files removes them.
    checkpoints.save(checkpoint(5), keep=9)
    assert stored_files(tmp_path) == {}
    assert steps(checkpoints) == [f"step-{k:012}" for k in (1, 2, 3, 4, 5)]


def test_large_files_are_written_at_the_save(tmp_path):
    """The content at the time of the save is written; a loaded checkpoint has its path."""
    content = ["before"]
    saved = replace(checkpoint(1), files={"replay.zip": lambda path: path.write_text(content[0])})
    assert saved.path is None
    content[0] = "at the time"
    folder = Checkpoints(tmp_path).save(saved)
    content[0] = "after"
    loaded = Checkpoints(tmp_path).load()
    assert loaded.path == folder
    assert loaded.path == tmp_path / "step-000000000001"
    assert (loaded.path / "replay.zip").read_text() == "at the time"
    assert loaded.files == {}  # nothing to write again
    assert Checkpoints(tmp_path).load("step-000000000001").path == loaded.path


def test_a_failing_large_file_leaves_the_previous_checkpoint(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(checkpoint_with_files(1, "of 1"))

    def fail(path):
        path.write_text("half of it")
        raise OutputError("no room for the buffer: free some space")

    for error, failing in ((RunDirectoryError, fail), (RuntimeError, raise_boom)):
        with pytest.raises(error, match=r"no room for the buffer|boom"):
            checkpoints.save(replace(checkpoint(2), files={"replay.zip": failing}))
        assert checkpoints.load().state["timesteps"] == 1
        assert stored_files(tmp_path) == {"step-000000000001": "of 1"}
        assert sorted(os.listdir(tmp_path)) == ["last", "step-000000000001"]


def raise_boom(path):
    raise RuntimeError("boom")


def test_rewinding_keeps_large_files_in_place(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(checkpoint_with_files(1, "of 1"), names=("best", "last"))
    checkpoints.save(checkpoint_with_files(2, "of 2"), keep=3)
    first = checkpoints.load("best")
    assert not (first.path / "replay.zip").exists()
    checkpoints.rewind(first, best=1)
    checkpoints.remove_later(first)
    assert stored_files(tmp_path) == {}
    checkpoints.save(checkpoint_with_files(3, "of 3"))
    assert stored_files(tmp_path) == {"step-000000000003": "of 3"}


def test_the_newest_intact_checkpoint_is_named(tmp_path):
    checkpoints = Checkpoints(tmp_path / "a run" / "checkpoints")
    (tmp_path / "a run").mkdir()
    for step in (1, 2, 3, 4):
        checkpoints.save(checkpoint(step), keep=9)
    for step, name in ((4, "policy.safetensors"), (3, "state.json"), (2, "learner.safetensors")):
        path = checkpoints.path / f"step-{step:012}" / name
        path.write_bytes(path.read_bytes()[:-2])
    intact = "step-000000000001"
    message = f"newest intact one is {intact}, .*hotloop resume '.*/a run' --checkpoint {intact}"
    for load in (checkpoints.load, checkpoints.load_policy):
        with pytest.raises(CheckpointError, match=message):
            load()
    assert checkpoints.load(intact).state["timesteps"] == 1


def test_no_damage_is_used_silently(tmp_path):
    """A flipped bit, a cut or a block of zeros anywhere in any file is detected."""
    checkpoints = Checkpoints(tmp_path)
    scale = ObsScale(np.zeros(4, np.float32), np.ones(4, np.float32), 10.0)
    folder = checkpoints.save(checkpoint(1, obs_scale=scale))
    random = np.random.default_rng(1)
    for trial in range(60):
        path = sorted(folder.iterdir())[trial % 3]
        content = path.read_bytes()
        place = int(random.integers(len(content)))
        kind = trial // 3 % 3
        if kind == 0:
            flipped = bytes([content[place] ^ 1 << int(random.integers(8))])
            damaged = content[:place] + flipped + content[place + 1 :]
        elif kind == 1:
            damaged = content[:place]
        else:
            damaged = content[:place] + bytes(len(content) - place)
        path.write_bytes(damaged)
        if path.name == "state.json" and kind == 1 and not content[place:].strip():
            continue  # only the newline at the end is missing
        with pytest.raises(CheckpointError, match="cut short or damaged"):
            checkpoints.load()
        path.write_bytes(content)
    checkpoints.load()


@pytest.mark.parametrize("name", ["../../other/checkpoints/last", "x" * 300, "", ".", "a\0b"])
def test_an_unknown_checkpoint_name_is_rejected(tmp_path, name):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(checkpoint(1))
    with pytest.raises(CheckpointError, match=r"has no checkpoint '.*it has last, step-") as caught:
        checkpoints.load(name)
    assert len(str(caught.value)) < 500


def test_a_foreign_state_is_validated(tmp_path):
    """Correct digests show that a state is intact, but not that it is valid."""
    checkpoints = Checkpoints(tmp_path)
    folder = checkpoints.save(checkpoint(1))
    state = json.loads((folder / "state.json").read_text())
    for changed in (
        {"timesteps": "../../x"},
        {"timesteps": 2**70},
        {"policy_version": None},
        {"files": {"policy.safetensors": 1}},
        {"files": {}},
        {"network": []},
    ):
        other = {**state, **changed}
        other["digest"] = documents.digest(other)
        (folder / "state.json").write_text(json.dumps(other))
        with pytest.raises(CheckpointError, match="cut short or damaged"):
            checkpoints.load_policy()
    for network in ({}, {"kind": "x"}, {**state["network"], "head": 7}, {"body": {"kind": []}}):
        other = {**state, "network": network}
        other["digest"] = documents.digest(other)
        (folder / "state.json").write_text(json.dumps(other))
        with pytest.raises(Exception, match=r"cut short or damaged|there is no head"):
            checkpoints.load_policy()


def test_a_missing_array_is_named(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(checkpoint(10))
    arrays = checkpoints.load().arrays()
    assert arrays["step"] == 5
    with pytest.raises(CheckpointError, match=r"step-000000000010 has no array `adam.variance`"):
        arrays["adam.variance"]
