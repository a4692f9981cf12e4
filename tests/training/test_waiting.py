"""Waiting for the device: at reports alone, however many updates are made between them."""

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
from tests.copies import UnpinnedCopies

GPU = pytest.param("cuda", marks=pytest.mark.gpu)
COMMON = {"hidden_sizes": (8,), "torch_threads": 1, "execution": "eager"}
ON_POLICY = {**COMMON, "total_timesteps": 96, "num_steps": 16, "num_envs": 2}
OFF_POLICY = {
    **COMMON,
    "total_timesteps": 80,
    "learning_starts": 20,
    "batch_size": 8,
    "buffer_size": 200,
    "report_interval": 20,
}
# Of each algorithm the same run with few updates in an iteration, and with many.
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
LOOKS = (
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.is_nonzero.default,
    torch.ops.aten.equal.default,
    torch.ops.aten.nonzero.default,
)


class Looks(TorchDispatchMode):
    """Counts the operations that give Python a tensor's value."""

    def __init__(self):
        super().__init__()
        self.count = 0

    @classmethod
    def _should_skip_dynamo(cls):
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func in LOOKS
        return func(*args, **(kwargs or {}))


class Warned:
    """Counts the warnings of torch where something waits for a GPU."""

    def __init__(self, caught):
        self._caught = caught

    @property
    def count(self):
        return sum("synchronizing CUDA operation" in str(one.message) for one in self._caught)


@contextmanager
def counted(device, monkeypatch):
    """Count how often values are read back, by operations and by what goes around these."""
    if device == "cuda":
        torch.zeros(1, device="cuda")
        torch.cuda.set_sync_debug_mode("warn")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield Warned(caught)
        torch.cuda.set_sync_debug_mode("default")
        return
    with Looks() as looks, monkeypatch.context() as patch:
        for name in ("tolist", "cpu"):
            method = getattr(torch.Tensor, name)

            def looked(x, *args, method=method, **kwargs):
                looks.count += 1
                return method(x, *args, **kwargs)

            patch.setattr(torch.Tensor, name, looked)
        yield looks


def of_last_iteration(name, device, options, tmp_path, monkeypatch):
    """How often the last whole iteration waits, and how many updates it makes."""
    module, common, *_ = RUNS[name]
    config = module.Config(
        **{**common, **options}, device=device, run_dir=str(tmp_path / str(options))
    )
    updates, at_reports = [], []
    update = Learner.update
    monkeypatch.setattr(
        Learner, "update", lambda self, batch: (updates.append(1), update(self, batch))[1]
    )
    make = Launches.make
    monkeypatch.setattr(
        Launches,
        "make",
        lambda self, count, scale: (updates.extend([1] * count), make(self, count, scale))[1],
    )
    with counted(device, monkeypatch) as looks:
        module.train(
            config,
            env=ENVS[name],
            on_report=lambda report: at_reports.append((looks.count, len(updates))) or False,
        )
    monkeypatch.setattr(Learner, "update", update)
    monkeypatch.setattr(Launches, "make", make)
    (before, updates_before), (after, updates_after) = at_reports[-2:]
    return after - before, updates_after - updates_before


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("name", RUNS)
def test_reports_alone_wait(name, device, tmp_path, monkeypatch):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    _, _, few, many = RUNS[name]
    if device == "cuda" and name != "ppo":
        few, many = ({**one, "overlap": True} for one in (few, many))
    looks_few, updates_few = of_last_iteration(name, device, few, tmp_path, monkeypatch)
    looks_many, updates_many = of_last_iteration(name, device, many, tmp_path, monkeypatch)
    assert updates_many >= 4 * updates_few > 0
    assert looks_many == looks_few > 0


@pytest.mark.gpu
@pytest.mark.parametrize("name", RUNS)
def test_copies_between_reports_are_pinned(name, tmp_path):
    """Torch reports no copy from or to memory that is not pinned, though the host waits for it."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    module, common, few, many = RUNS[name]
    downloads = []
    for options in (few, many):
        copies, at_reports = UnpinnedCopies(), []

        def note(report, copies=copies, at_reports=at_reports):
            at_reports.append((len(copies.uploads), len(copies.downloads)))

        run_dir = str(tmp_path / str(options))
        config = module.Config(**{**common, **options}, device="cuda", run_dir=run_dir)
        with copies.listed():
            module.train(config, env=ENVS[name], on_report=note)
        before, after = at_reports[-2:]
        assert after[0] == before[0], copies.uploads
        downloads.append(after[1] - before[1])
    assert downloads[0] == downloads[1]  # what a report reads, however many updates there were


def test_an_update_that_looks_is_seen(tmp_path, monkeypatch):
    """The count is one that more updates would raise."""
    update = ppo.update

    def looks(state, batch, noise, hyper, *, nets, config):
        metrics = update(state, batch, noise, hyper, nets=nets, config=config)
        assert metrics["policy_loss"].item() < 1e9
        return metrics

    monkeypatch.setattr(ppo, "train", dataclasses.replace(ppo.algorithm, update=looks).train)
    _, _, few, many = RUNS["ppo"]
    looks_few, _ = of_last_iteration("ppo", "cpu", few, tmp_path, monkeypatch)
    looks_many, _ = of_last_iteration("ppo", "cpu", many, tmp_path, monkeypatch)
    assert looks_many > looks_few
