import numpy as np
import pytest
import torch

from hotloop.algorithms import sac_discrete
from hotloop.errors import ConfigError, SpaceError
from hotloop.learner import torch_threads
from hotloop.policies import ActingPolicy
from hotloop.runs import RunDirectory
from tests.algorithms.learners import assert_learner_is_restored, make_learner_setup
from tests.algorithms.test_sac import UNIT
from tests.policies.test_policies import DISCRETE
from tests.reference import off_policy as reference

SMALL = {"batch_size": 32, "hidden_sizes": (16, 12), "execution": "eager", "torch_threads": 1}


def make_setup(action_spec=DISCRETE, **options):
    return make_learner_setup(sac_discrete.algorithm, action_spec, **{**SMALL, **options})


def critics_by_name(nets, params):
    return [nets.critics.layout.unpack(row) for row in params]


@pytest.fixture(autouse=True)
def one_thread():
    """Networks this small are slower with several threads."""
    with torch_threads(1):
        yield


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"policy_frequency": 2, "num_critics": 3, "activation": "tanh"},
        {"alpha": 0.3, "num_critics": 1, "hidden_sizes": (24,), "tau": 0.3},
        {"initial_alpha": 0.2, "target_entropy_share": 0.2, "tau": 1.0},
    ],
)
@pytest.mark.parametrize("weighed", [False, True])
def test_update_equals_the_reference(options, weighed):
    """20 updates, compared with torch modules, torch's Adam and a loop over the actions."""
    rates = {"policy_learning_rate": 3e-3, "critic_learning_rate": 5e-3}
    setup = make_setup(**rates, **options)
    config, nets, state = setup.config, setup.nets, setup.state
    start = state.policy.clone(), state.critics.clone()
    critics = critics_by_name(nets, state.critics)
    policy = nets.policy.layout.unpack(state.policy)
    peer = reference.DiscreteSAC(policy, critics, DISCRETE.num_actions, config)
    rows, policy_rows = [], []
    for k in range(20):
        batch = reference.random_batch(3, DISCRETE, 32, seed=k, weighed=weighed)
        td_error = setup.update(batch)
        metrics, new_rows, their_error = peer.update(batch)
        rows.append(metrics)
        policy_rows += new_rows
        torch.testing.assert_close(td_error.double(), their_error, rtol=1e-3, atol=1e-3)

    expected = {**reference.means(rows), **reference.means(policy_rows)}
    assert setup.means() == pytest.approx(expected, rel=1e-3, abs=1e-4)
    for flat, before in zip((state.policy, state.critics), start, strict=True):
        assert (flat - before).abs().mean() > 0.01
    module = reference.actor_module(config, nets.policy.layout.unpack(state.policy))
    reference.assert_same_parameters(module, peer.policy)
    for params, modules in ((state.critics, peer.critics), (state.targets, peer.targets)):
        for named, peer_module in zip(critics_by_name(nets, params), modules, strict=True):
            module = reference.actor_module(config, named)
            reference.assert_same_parameters(module, peer_module)
    assert (state.log_alpha.item() == 0.0) == (config.alpha is not None)
    assert state.log_alpha.item() == pytest.approx(peer.log_alpha.item(), abs=1e-5)
    # The acting policy is the same network, on NumPy.
    acting = ActingPolicy(nets.policy.network, setup.learner.publish(20))
    with torch.no_grad():
        logits = peer.policy(batch.obs.double())
    np.testing.assert_allclose(acting.head(batch.obs.numpy()), logits, rtol=1e-2, atol=1e-2)


def test_critics_start_with_different_parameters():
    setup = make_setup(num_critics=3, seed=4)
    rows = [*setup.state.critics, setup.state.policy]
    assert len({row.numpy().tobytes() for row in rows}) == 4
    again = make_setup(num_critics=3, seed=4).state.critics
    assert torch.equal(setup.state.critics, again)


def test_learner_state_is_restored():
    assert_learner_is_restored(
        sac_discrete.algorithm,
        DISCRETE,
        lambda k: reference.random_batch(3, DISCRETE, 32, seed=k),
        **SMALL,
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_critics": 0}, "`num_critics` must be an integer from 1 to 100, got 0"),
        ({"num_critics": 101}, "`num_critics` must be an integer from 1 to 100, got 101"),
        ({"target_entropy_share": 1.5}, r"`target_entropy_share` must lie in \[0, 1\], got 1.5"),
        ({"alpha": 0.1, "target_entropy_share": 0.5}, "`target_entropy_share` 0.5 is for `alpha`"),
        ({"alpha": 0.2, "initial_alpha": 5.0}, "`initial_alpha` 5.0 is for `alpha` None, got 0.2"),
    ],
)
def test_bad_values(options, message):
    with pytest.raises(ConfigError, match=message):
        sac_discrete.Config(**options)


def test_continuous_actions_are_refused():
    with pytest.raises(SpaceError, match=r"got a box space of shape .*: use ppo"):
        make_setup(UNIT)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_cartpole_is_solved(tmp_path):
    options = {"eval_interval": 50_000, "eval_episodes": 20, "run_dir": str(tmp_path / "run")}
    sac_discrete.train(sac_discrete.preset("CartPole-v1", seed=1, torch_threads=1, **options))
    evaluation = RunDirectory.open(tmp_path / "run").metrics()[-1]["evaluation"]
    assert evaluation["mean_return"] >= 475
