"""Readers of runs of each kind, and of what lies beside them: pools, policies, data sets, trackers.

See `tests.faults.readers`, which has the files of every run.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import hotloop
from hotloop.algorithms import find
from hotloop.base import documents
from hotloop.base.space_syntax import Range
from hotloop.envs import EnvSpec, make_vec
from hotloop.envs.turns import Turn
from hotloop.experiments.policy_population import Population
from hotloop.reports import workers
from hotloop.reports.hub_push import published_config
from hotloop.reports.self_play import self_play_section
from hotloop.runs import RunDirectory, tracking
from hotloop.runs.hub import HubAddress, files_to_load
from hotloop.runs.policies import policy_runs
from hotloop.runs.run_status import read_status
from hotloop.runs.tracker_files import last_tensorboard_step, last_wandb_step
from hotloop.training import recorded, train_policies
from hotloop.training.checkpoint_state import CheckpointState
from hotloop.training.opponent_pool import OpponentPool
from hotloop.training.options import from_stored, untrusted_options
from hotloop.training.several_policies import finished_steps
from tests.faults import damage
from tests.faults.readers import Reader, change_json_file, seal_arrays, seal_json

_PPO = {"execution": "eager", "hidden_sizes": (8,), "num_envs": 2, "num_steps": 16}
_PPO |= {"total_timesteps": 64}
_REPLAY = {**_PPO, "learning_starts": 32, "batch_size": 16, "buffer_size": 200}
_REPLAY.pop("num_steps")
# Runs with networks of each kind: algorithm and options.
NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "hybrid": ("ppo", {"env_id": "tests.toy_envs:MixedSign", **_PPO}),
    "recurrent": ("ppo", {"env_id": "CartPole-v1", "memory": "lstm:4", **_PPO, "num_envs": 4}),
    "images": ("ppo", {"env_id": "tests.toy_images:Signs", **_PPO}),
    "c51": ("dqn", {"env_id": "CartPole-v1", "atoms": 11, "noisy_std": 0.5, **_REPLAY}),
    "crossq": ("crossq", {"env_id": "Pendulum-v1", **_REPLAY}),
    "tqc": ("tqc", {"env_id": "Pendulum-v1", **_REPLAY}),
    "discrete sac": ("sac_discrete", {"env_id": "CartPole-v1", **_REPLAY}),
}


def _train(algorithm: str, folder: Path, **options: Any) -> None:
    """Train a run, and remove its signature, as if another user had trained it."""
    config = find(algorithm).config(**options, run_dir=str(folder))
    if options.get("policies"):
        train_policies(find(algorithm), config)
    else:
        find(algorithm).train(config, progress=False)
    for path in folder.rglob("config.json"):
        content = json.loads(path.read_text())
        path.write_text(json.dumps({**content, "signature": ""}))


def _sample(run: RunDirectory) -> Any:
    """Return an observation of a run's environment."""
    envs = make_vec(EnvSpec(run.config["env_id"]), 1)
    obs = envs.reset(first_episode=0)
    envs.close()
    return obs


# --- policies -------------------------------------------------------------------------------------


def make_network(name: str, folder: Path) -> None:
    """Train a run with a network of this kind, and store an observation beside it."""
    algorithm, options = NETWORKS[name]
    _train(algorithm, folder / "run", **options)
    np.save(folder / "obs.npy", _sample(RunDirectory.open(folder / "run")))


def _read_network(folder: Path) -> Any:
    policy = hotloop.load(folder / "run")
    memory = policy.new_memory(1) if policy.network.memory_size else None
    return repr(policy.act(np.load(folder / "obs.npy"), memory))


def make_published(folder: Path, reference: Callable[[str], Path]) -> None:
    """Write the files that `hotloop push` would upload."""
    run = RunDirectory.open(reference("plain"))
    files = run.checkpoints.policy_files()
    files["config.json"] = json.dumps(published_config(run.config)).encode()
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def _read_published(folder: Path) -> Any:
    RunDirectory.open(folder).check_trusted(is_trusted=False, only_environment=True)
    return repr(hotloop.load(folder).act(np.zeros(4, np.float32)))


def make_listing(folder: Path) -> None:
    """Write the list of files of a repository on the hub: name and size."""
    names = ("config.json", "README.md", ".gitattributes", "learning_curve.png")
    checkpoint = ("state.json", "policy.safetensors")
    sizes = dict.fromkeys((*names, *(f"checkpoints/step-{64:012}/{x}" for x in checkpoint)), 900)
    (folder / "listing.json").write_text(json.dumps(sizes))


def _read_listing(folder: Path) -> Any:
    try:
        sizes = documents.read(folder / "listing.json")
    except (OSError, ValueError):  # the library of the hub reads its answers
        return None
    return files_to_load(HubAddress("user/name"), sizes)


# --- several policies, self-play ------------------------------------------------------------------


_POLICIES = "red,blue"


def make_policies(folder: Path) -> None:
    """Train two policies."""
    options = {**_PPO, "num_envs": 6, "total_timesteps": 96, "policies": _POLICIES}
    _train("ppo", folder / "run", env_id="tests.toy_games:Teams", **options)


def _config_of(run: RunDirectory) -> Any:
    """Return a run's configuration, or None if it is refused without trust."""
    kind, stored = find("ppo").config, run.config["config"]
    # Names of policies and opponents need trust too, as the environments of these runs do.
    known = {"policies": _POLICIES, "opponents": ["random"]}
    others = {name: x for name, x in stored.items() if known.get(name) != x}
    return None if untrusted_options(kind, others) else from_stored(kind, stored)


def _read_policies(folder: Path) -> Any:
    run = RunDirectory.open(folder / "run")
    config = _config_of(run)
    if config is None:
        return None
    steps = finished_steps(run, config)
    policies = [hotloop.load(path) for path in policy_runs(run.path)]
    actions = [policy.act(np.zeros(policy.network.obs_spec.shape)) for policy in policies]
    return steps, repr(actions), run.config["config"]["policies"]


def _population(folder: Path) -> Population:
    config = find("ppo").config(
        **{**_PPO, "env_id": "tests.toy_games:Matching", "policies": "left,right"},
        run_dir=str(folder / "run"),
    )
    space = {"learning_rate": Range(1e-4, 1e-2, is_log=True)}
    return Population(find("ppo"), config, space, members=2, generations=2, num_games=2)


def make_population(folder: Path) -> None:
    """Train a population of two policies."""
    _population(folder).train()


def _read_population(folder: Path) -> Any:
    population = _population(folder)
    population._names = ["left", "right"]
    generations = population._open()
    population._check(generations)
    return repr(generations)


def make_self_play(folder: Path) -> None:
    """Train a run against its own snapshots."""
    options = {**_PPO, "num_envs": 4, "total_timesteps": 320, "action_masks": True}
    options |= {"self_play": "prioritized", "self_play_interval": 128, "opponents": ("random",)}
    _train("ppo", folder / "run", env_id="tests.toy_games:Nim", **options)


def _read_self_play(folder: Path) -> Any:
    run = RunDirectory.open(folder / "run")
    config = _config_of(run)
    if config is None:
        return None
    position = CheckpointState.from_json(run.checkpoints.load().state)
    pool = OpponentPool(config, 0, run.path / "pool", run.checkpoints)
    pool.network, _, _ = run.load_policy()
    pool.load(position.callbacks.get("SelfPlay"))
    pool.attach(pool.network)
    obs = np.zeros(pool.network.obs_spec.shape, pool.network.obs_spec.dtype)
    mask = np.ones(pool.network.action_spec.mask_size, np.bool_)
    turns = [Turn(game, "agent", None, obs, mask) for game in range(4)]
    pool.begin(0, 10**6)
    actions = [pool._player(name).act(turns, np.random.default_rng(0)) for name in pool._snapshots]
    return repr((actions, pool.table(), position))


def _read_ratings(folder: Path) -> Any:
    return self_play_section(folder / "run") or None


# --- files beside the checkpoints -----------------------------------------------------------------


def _read_status(folder: Path) -> Any:
    status = read_status(folder)
    return None if status is None else vars(status)


def _read_accounting(folder: Path) -> Any:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        workers.print_workers(folder)
    return None if "is damaged" in err.getvalue() else out.getvalue()


def make_identity(folder: Path) -> None:
    """Store the identity of a run at a tracker."""
    from tests.runs.test_directory import create

    run = create(folder)
    tracking._write_identity(run, "mlflow.json", {"run_id": "0123456789"})
    run.close()


def _read_identity(folder: Path) -> Any:
    (config,) = folder.rglob("config.json")
    return tracking._read_identity(RunDirectory.open(config.parent), "mlflow.json") or None


def make_tensorboard(folder: Path) -> None:
    """Write TensorBoard's events."""
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder)) as writer:
        for step in range(30):
            writer.add_scalar("rate", 1.0, step)


def _read_tensorboard(folder: Path) -> Any:
    return last_tensorboard_step(folder, "rate")


def make_wandb(folder: Path) -> None:
    """Write W&B's records in the format of LevelDB's log."""
    from wandb.proto import wandb_internal_pb2 as messages

    content = b":W&B" + bytes(3)
    for step in range(30):
        record = messages.Record()
        record.history.step.num = step
        text = record.SerializeToString()
        content += struct.pack("<IHB", 0, len(text), 1) + text
    (folder / "offline-run-1").mkdir()
    (folder / "offline-run-1" / "run-1.wandb").write_bytes(content)


def _read_wandb(folder: Path) -> Any:
    return last_wandb_step(folder, "1")


# --- recorded data --------------------------------------------------------------------------------

_DATASET = "pendulum/test-v0"


def make_dataset(folder: Path) -> None:
    """Write a data set of Minari."""
    from tests.minari_data import random_episodes, write_dataset

    with mock.patch.dict(os.environ, {"MINARI_DATASETS_PATH": str(folder)}):
        write_dataset(_DATASET, random_episodes((3,), (1,)))


def _read_dataset(folder: Path) -> Any:
    envs = make_vec("Pendulum-v1", 1)
    with mock.patch.dict(os.environ, {"MINARI_DATASETS_PATH": str(folder)}):
        storage = recorded.open_dataset(_DATASET)
        recorded.check_spaces(storage, _DATASET, envs)
        episodes = list(recorded.read_episodes(storage, _DATASET, envs))
    return repr([{name: array.tolist() for name, array in x.items()} for x in episodes])


def _change_bytes(path: Path, rng: random.Random) -> None:
    path.write_bytes(damage.flip(path.read_bytes(), rng))


_LAST = "run/checkpoints/last"
_POLICY, _STATE = "policy.safetensors", "state.json"
# Name → (artefact, reader), as in `tests.faults.readers`.
READERS: dict[str, tuple[str, Reader]] = {
    **{
        f"{name}, {file}": (name, Reader(f"{_LAST}/{file}", _read_network, seal))
        for name in NETWORKS
        for file, seal in ((_STATE, seal_json), (_POLICY, seal_arrays))
    },
    "published config.json": (
        "published",
        Reader("config.json", _read_published, change_json_file, False),
    ),
    "published state.json": (
        "published",
        Reader(f"checkpoints/step-*/{_STATE}", _read_published, seal_json),
    ),
    "listing of a repository": (
        "listing",
        Reader("listing.json", _read_listing, change_json_file, False),
    ),
    "policies, config.json": (
        "policies",
        Reader("run/config.json", _read_policies, change_json_file, False),
    ),
    "policies, config.json of one": (
        "policies",
        Reader("run/policies/red/config.json", _read_policies, change_json_file, False),
    ),
    "policies, state.json": (
        "policies",
        Reader("run/policies/red/checkpoints/last/state.json", _read_policies, seal_json),
    ),
    "population.json": (
        "population",
        Reader("run/population.json", _read_population, seal_json),
    ),
    "self-play, config.json": (
        "self_play",
        Reader("run/config.json", _read_self_play, change_json_file, False),
    ),
    "self-play, state.json": (
        "self_play",
        Reader(f"{_LAST}/{_STATE}", _read_self_play, seal_json),
    ),
    "self-play, snapshot": (
        "self_play",
        Reader(f"run/pool/step-{128:012}/{_POLICY}", _read_self_play, seal_arrays),
    ),
    "self_play.json": ("self_play", Reader("run/self_play.json", _read_ratings, seal_json)),
    "status.json": ("run", Reader("status.json", _read_status, seal_json)),
    "accounting.json": ("workers run", Reader("accounting.json", _read_accounting, seal_json)),
    "mlflow.json": ("identity", Reader("**/mlflow.json", _read_identity, seal_json)),
    "events of TensorBoard": (
        "tensorboard",
        Reader("events.out.tfevents.*", _read_tensorboard, None, False),
    ),
    "records of W&B": ("wandb", Reader("*/run-1.wandb", _read_wandb, None, False)),
    "metadata of a data set": (
        "dataset",
        Reader(f"{_DATASET}/data/metadata.json", _read_dataset, change_json_file, False),
    ),
    "data set": ("dataset", Reader(f"{_DATASET}/data/*.hdf5", _read_dataset, _change_bytes, False)),
}


def maker(name: str, reference: Callable[[str], Path]) -> Callable[[Path], None] | None:
    """Return the function that makes an artefact of `READERS` in a folder, or None."""
    if name in NETWORKS:
        return partial(make_network, name)
    if name == "published":
        return partial(make_published, reference=reference)
    return globals().get(f"make_{name}")
