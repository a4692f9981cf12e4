"""The host waits for the device only at reports, however many updates run in between."""

import dataclasses
import warnings
from contextlib import contextmanager

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hotloop.algorithms import dqn, ppo, sac, td3
from hotloop.learner import Learner
from hotloop.training.device_replay import Launches
from tests import toy_envs
from tests.device_copies import UnpinnedCopies

GPU = pytest.param("cuda", marks=pytest.mark.gpu)
COMMON = {"hidden_sizes": (8,), "torch_threads": 1, "execution": "eager"}
ON_POLICY = {**COMMON, "total_timesteps": 96, "num_steps": 16, "num_envs": 2}
OFF_POLICY = {
    **COMMON,
    "total_timesteps": 60,
    "learning_starts": 20,
    "batch_size": 8,
    "buffer_size": 200,
    "report_interval": 20,
}
# Each algorithm's run with few and with many updates in an iteration.
RUNS = {
    "ppo": (ppo, ON_POLICY, {"update_epochs": 1}, {"update_epochs": 4}),
    "sac": (sac, OFF_POLICY, {"update_to_data": 1.0}, {"update_to_data": 4.0}),
    "td3": (td3, OFF_POLICY, {"update_to_data": 1.0}, {"update_to_data": 4.0}),
    "dqn": (dqn, OFF_POLICY, {"update_to_data": 1.0}, {"update_to_data": 4.0}),
    "launches": (
        sac,
        {**OFF_POLICY, "replay_device": "device"},
        {"update_to_data": 1.0},
        {"update_to_data": 4.0, "updates_per_launch": 4},
    ),
}
ENVS = {
    "ppo": "CartPole-v1",
    "sac": toy_envs.ReachTheTarget,
    "td3": toy_envs.ReachTheTarget,
    "dqn": toy_envs.ChooseTheSign,
    "launches": toy_envs.ReachTheTarget,
}
READS = (
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.is_nonzero.default,
    torch.ops.aten.equal.default,
    torch.ops.aten.nonzero.default,
)


class ReadCounter(TorchDispatchMode):
    """Count the operations that return a tensor's value to Python."""

    def __init__(self):
        super().__init__()
        self.count = 0

    @classmethod
    def _should_skip_dynamo(cls):
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func in READS
        return func(*args, **(kwargs or {}))


class SyncWarnings:
    """Count torch's warnings about waiting for a GPU."""

    def __init__(self, caught):
        self._caught = caught

    @property
    def count(self):
        return sum(
            "synchronizing CUDA operation" in str(warning.message) for warning in self._caught
        )


@contextmanager
def count_reads(device, monkeypatch):
    """Count reads of tensor values, also those that bypass the dispatcher."""
    if device == "cuda":
        torch.zeros(1, device="cuda")
        torch.cuda.set_sync_debug_mode("warn")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield SyncWarnings(caught)
        torch.cuda.set_sync_debug_mode("default")
        return
    with ReadCounter() as reads, monkeypatch.context() as patch:
        for name in ("tolist", "cpu"):
            method = getattr(torch.Tensor, name)

            def read(x, *args, method=method, **kwargs):
                reads.count += 1
                return method(x, *args, **kwargs)

            patch.setattr(torch.Tensor, name, read)
        yield reads


def measure_last_iteration(name, device, options, tmp_path, monkeypatch):
    """Return the number of waits and of updates of the last whole iteration."""
    module, common, *_ = RUNS[name]
    config = module.Config(
        **{**common, **options}, device=device, run_dir=str(tmp_path / str(options))
    )
    updates, at_reports = [], []
    update = Learner.update
    monkeypatch.setattr(
        Learner, "update", lambda self, batch: (updates.append(1), update(self, batch))[1]
    )
    make = Launches.run
    monkeypatch.setattr(
        Launches,
        "run",
        lambda self, count, scale: (updates.extend([1] * count), make(self, count, scale))[1],
    )
    with count_reads(device, monkeypatch) as reads:
        module.train(
            config,
            env=ENVS[name],
            on_report=lambda report: at_reports.append((reads.count, len(updates))) or False,
        )
    monkeypatch.setattr(Learner, "update", update)
    monkeypatch.setattr(Launches, "run", make)
    (before, updates_before), (after, updates_after) = at_reports[-2:]
    return after - before, updates_after - updates_before


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("name", RUNS)
def test_only_reports_wait(name, device, tmp_path, monkeypatch):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    _, _, few, many = RUNS[name]
    if device == "cuda" and name != "ppo":
        few, many = ({**options, "overlap": True} for options in (few, many))
    waits_few, updates_few = measure_last_iteration(name, device, few, tmp_path, monkeypatch)
    waits_many, updates_many = measure_last_iteration(name, device, many, tmp_path, monkeypatch)
    assert updates_many >= 4 * updates_few > 0
    assert waits_many == waits_few > 0


@pytest.mark.gpu
@pytest.mark.parametrize("name", RUNS)
def test_copies_between_reports_are_pinned(name, tmp_path):
    """Torch does not report copies of unpinned memory, although the host waits for them."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    module, common, few, many = RUNS[name]
    downloads = []
    for options in (few, many):
        copies, at_reports = UnpinnedCopies(), []

        def record(report, copies=copies, at_reports=at_reports):
            at_reports.append((len(copies.uploads), len(copies.downloads)))

        run_dir = str(tmp_path / str(options))
        config = module.Config(**{**common, **options}, device="cuda", run_dir=run_dir)
        with copies.listed():
            module.train(config, env=ENVS[name], on_report=record)
        before, after = at_reports[-2:]
        assert after[0] == before[0], copies.uploads
        downloads.append(after[1] - before[1])
    assert downloads[0] == downloads[1]  # a report reads the same, however many updates ran


def test_reads_within_updates_are_counted(tmp_path, monkeypatch):
    """More updates raise the count."""
    update = ppo.update

    def reading_update(state, batch, noise, hyper, *, nets, config):
        metrics = update(state, batch, noise, hyper, nets=nets, config=config)
        assert metrics["policy_loss"].item() < 1e9
        return metrics

    monkeypatch.setattr(
        ppo, "train", dataclasses.replace(ppo.algorithm, update=reading_update).train
    )
    _, _, few, many = RUNS["ppo"]
    waits_few, _ = measure_last_iteration("ppo", "cpu", few, tmp_path, monkeypatch)
    waits_many, _ = measure_last_iteration("ppo", "cpu", many, tmp_path, monkeypatch)
    assert waits_many > waits_few
