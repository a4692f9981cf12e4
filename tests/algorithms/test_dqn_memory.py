"""DQN with recurrent networks: its update compared with one sequence at a time."""

import numpy as np
import pytest
import torch

from hotloop.algorithms import dqn
from hotloop.envs import EnvSpec, make_vec
from hotloop.errors import ConfigError
from hotloop.training import ReplayBatch
from hotloop.training.replay import Replay
from hotloop.types import Fragment
from tests.algorithms.learners import make_learner_setup
from tests.policies.test_policies import DISCRETE
from tests.reference import memory as reference

LENGTH, COUNT = 6, 3
SMALL = {
    "hidden_sizes": (7,),
    "activation": "tanh",
    "batch_size": COUNT,
    "execution": "eager",
    "buffer_size": 1_000,
}


def sequences(memory_size):
    """Return sequences of one episode each, in which a step follows the other."""
    rng = np.random.default_rng(0)
    obs = rng.standard_normal((LENGTH + 1, COUNT, 3)).astype(np.float32)
    mask = np.ones((LENGTH, COUNT), np.float32)
    mask[:2] = 0.0  # burn-in
    mask[4:, 1] = 0.0  # after an episode's end
    rows = {
        "obs": obs[:-1],
        "action": rng.integers(0, 3, (LENGTH, COUNT)),
        "reward": rng.standard_normal((LENGTH, COUNT)).astype(np.float32),
        "next_obs": obs[1:],
        "discount": np.where(rng.random((LENGTH, COUNT)) < 0.8, np.float32(0.9), np.float32(0.0)),
        "importance": mask / mask.mean(),
        "begins": np.zeros((LENGTH, COUNT), np.bool_),
    }
    batch = ReplayBatch(
        **{name: torch.from_numpy(x).flatten(0, 1) for name, x in rows.items()},
        memory=torch.from_numpy(rng.uniform(-1, 1, (COUNT, memory_size)).astype(np.float32)),
    )
    return batch, {name: torch.from_numpy(x) for name, x in rows.items()}


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_update_equals_one_sequence_at_a_time(kind, double):
    setup = make_learner_setup(
        dqn.algorithm, DISCRETE, memory=f"{kind}:5", double=double, learning_rate=1e-2, **SMALL
    )
    network = setup.nets.network
    params = network.initial_parameters(setup.config.seed)
    peer, target = (with_value(reference.RecurrentNetworks(params, kind)) for _ in range(2))
    optimizer = torch.optim.Adam(peer.parameters(), lr=1e-2)
    batch, rows = sequences(network.memory_size)
    first = batch.memory.double()
    obs = torch.cat([rows["obs"], rows["next_obs"][-1:]]).double()
    no_begins = torch.zeros(LENGTH + 1, COUNT, dtype=torch.bool)
    for _ in range(5):
        setup.update(batch)
        values, _ = peer.unroll(obs, first, no_begins)
        with torch.no_grad():
            next_values = target.unroll(obs, first, no_begins)[0][1:]
            best = (values if double else torch.cat([values[:1], next_values]))[1:].argmax(-1)
            chosen = next_values.gather(-1, best[..., None])[..., 0]
            targets = rows["reward"] + rows["discount"] * chosen
        value = values[:-1].gather(-1, rows["action"][..., None])[..., 0]
        loss = (rows["importance"] * (value - targets) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    learned = setup.learner.publish(1).params
    for name, expected in peer.numpy().items():
        if name in learned:
            np.testing.assert_allclose(learned[name], expected, rtol=1e-3, atol=1e-4, err_msg=name)
            assert not np.allclose(learned[name], params[name], rtol=1e-2, atol=1e-3)


def with_value(networks):
    """Add an unused critic: the reference has actor and critic, a Q-network has no critic."""
    for k in range(networks.num_layers):
        for part in ("weight", "bias"):
            networks.named[f"value_{k}_{part}"] = networks.named[f"policy_{k}_{part}"]
    return networks


def test_batches_are_sequences_with_stored_hidden_states():
    """Each sequence lies in one episode and starts at its stored state. Padding weighs 0."""
    envs = make_vec(EnvSpec("CartPole-v1", seed=0), 2)
    config = dqn.Config(
        memory="gru:4",
        sequence_length=3,
        burn_in=2,
        num_envs=2,
        normalize_obs=True,
        gamma=0.9,
        **SMALL,
    )
    replay = Replay(config, envs, torch.device("cpu"), EnvSpec("CartPole-v1"), memory_size=4)
    fragment = Fragment.allocate(
        40, 2, obs_shape=(4,), obs_dtype=np.float32, action_shape=(), action_dtype=np.int64,
        memory_size=4,
    )  # fmt: skip
    step = np.arange(40)[:, None, None] + np.array([[0.0], [100.0]])
    fragment.obs[:] = step
    fragment.next_obs[:] = step + 1
    fragment.memory[:] = step
    fragment.terminated[7::8] = True
    replay.store(fragment)
    for _ in range(20):
        (batch,), index = replay.draw(1)
        assert len(index) == 5 * COUNT
        obs = batch.obs.view(5, COUNT, 4)[..., 0].numpy()
        weight = batch.importance.view(5, COUNT).numpy()
        np.testing.assert_array_equal(batch.memory[:, 0], obs[0])
        assert weight.mean() == pytest.approx(1.0)
        for s in range(COUNT):
            counted = np.flatnonzero(weight[:, s])
            rows = obs[: counted[-1] + 1, s]
            np.testing.assert_array_equal(np.diff(rows), 1.0)
            assert len(set(rows % 100 // 8)) == 1, "a sequence crosses an episode's end"
            assert counted[0] == min(2, rows[counted[0]] % 100 % 8)
        np.testing.assert_array_equal(
            batch.discount.view(5, COUNT).numpy(),
            np.where(obs % 100 % 8 == 7, 0.0, np.float32(0.9)),
        )
    envs.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sequence_length": 8}, "`sequence_length` 8 needs `memory`, got None: set `memory`"),
        ({"burn_in": 0}, "`burn_in` 0 needs `memory`"),
        ({"memory": "gru:8", "replay": "rank"}, "leave `replay` out, or `memory`"),
        ({"memory": "gru:8", "n_step": 3}, "leave `n_step` out, or `memory`"),
        ({"memory": "gru:8", "replay_replacement": False}, "leave `replay_replacement` out"),
        ({"memory": "gru:8", "burn_in": 1_000}, "must hold a sequence, 1020 transitions with"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        dqn.Config(**{**SMALL, **options})
