"""SAC and TD3 with recurrent networks: their updates compared with one sequence at a time."""

import numpy as np
import pytest
import torch

from hotloop.algorithms import sac, td3, td3_bc
from hotloop.errors import ConfigError
from hotloop.policies import critics
from hotloop.policies.forward import LearnedCritics
from tests.algorithms.learners import make_learner_setup
from tests.algorithms.test_dqn_memory import COUNT, LENGTH, sequences
from tests.algorithms.test_sac import UNEVEN, UNIT
from tests.policies.nets import Spaces
from tests.policies.test_policies import obs_spec
from tests.reference import off_policy, recurrent_critics

SMALL = {
    "batch_size": COUNT,
    "sequence_length": LENGTH - 2,
    "burn_in": 2,
    "hidden_sizes": (8, 7),
    "execution": "eager",
    "torch_threads": 1,
    "policy_frequency": 2,
    "tau": 0.2,
}


def continuous_sequences(memory_size, spec):
    """Return sequences with continuous actions of a space."""
    batch, _ = sequences(memory_size)
    unit = np.random.default_rng(1).uniform(0, 1, (LENGTH * COUNT, 2)).astype(np.float32)
    low, high = (np.float32(bound) for bound in (spec.low, spec.high))
    return batch._replace(action=torch.from_numpy(low + (high - low) * unit))


@pytest.mark.parametrize(
    ("module", "twin", "kind", "spec", "options"),
    [
        (sac, "RecurrentSAC", "gru", UNIT, {"policy_learning_rate": 3e-3}),
        (sac, "RecurrentSAC", "lstm", UNEVEN, {"policy_learning_rate": 3e-3, "layer_norm": True}),
        (td3, "RecurrentTD3", "gru", UNEVEN, {"learning_rate": 5e-3}),
        (td3, "RecurrentTD3", "lstm", UNIT, {"learning_rate": 5e-3}),
    ],
)
def test_update_equals_one_sequence_at_a_time(module, twin, kind, spec, options):
    options = {**SMALL, "memory": f"{kind}:5", **options}
    setup = make_learner_setup(module.algorithm, spec, **options)
    nets, state = setup.nets, setup.state
    start = state.policy.clone(), state.critics.clone()
    peer = getattr(recurrent_critics, twin)(
        spec,
        nets.policy.layout.unpack(state.policy),
        nets.critics.layout.unpack(state.critics),
        setup.config,
        kind,
    )
    batch, draw_noise = (
        continuous_sequences(nets.policy.network.memory_size, spec),
        setup.draw_noise(),
    )
    for _ in range(6):
        td_error = setup.update(batch)
        expected = peer.update(batch, draw_noise)
        torch.testing.assert_close(td_error.double(), expected, rtol=1e-3, atol=1e-3)

    named = nets.policy.layout.unpack(state.policy)
    off_policy.assert_same_parameters(off_policy.actor_module(setup.config, named), peer.policy)
    cores = [(named, peer.cores.actor)]
    for flat, modules, core in (
        (state.critics, peer.critics.modules, peer.cores.critic),
        (state.targets, peer.critics.targets, peer.cores.critic_target),
    ):
        named = nets.critics.layout.unpack(flat)
        module_of = off_policy.critic_modules(setup.config, named)
        off_policy.assert_same_parameters(module_of, modules)
        cores.append((named, core))
    for named, core in cores:
        for name in ("weight", "bias"):
            expected = getattr(core, name).detach()
            torch.testing.assert_close(
                named[f"memory.{name}"].double(), expected, rtol=1e-3, atol=1e-4
            )
    for flat, before in zip((state.policy, state.critics), start, strict=True):
        assert (flat - before).abs().mean() > 1e-3


def test_rows_of_the_burn_in_have_no_loss():
    """They change what the recurrent layers remember, and nothing else."""
    losses = []
    for reward in (0.0, 100.0):
        setup = make_learner_setup(sac.algorithm, UNIT, **SMALL, memory="gru:5")
        batch = continuous_sequences(5, UNIT)
        batch.reward[batch.importance == 0.0] = reward
        setup.update(batch)
        losses.append(setup.means())
    assert losses[0] == losses[1]


def test_recurrent_critics_need_the_hidden_state():
    nets = LearnedCritics(critics(Spaces(obs_spec(3), UNIT), memory="gru:4"))
    obs, action = torch.zeros(2, 3), torch.zeros(2, 2)
    with pytest.raises(ConfigError, match="a network with memory needs the hidden state"):
        nets.values(nets.initial(0), obs, action)


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        (sac.Config, {"memory": "rnn:8"}, "`memory` must be lstm:UNITS or gru:UNITS"),
        (sac.Config, {"memory": "gru:8", "n_step": 3}, "leave `n_step` out, or `memory`"),
        (
            sac.Config,
            {"memory": "gru:8", "critic_network": "nets:Net"},
            "`critic_network` .* for `memory` None",
        ),
        (td3.Config, {"burn_in": 0}, "`burn_in` 0 needs `memory`"),
        (
            td3_bc.Config,
            {"memory": "gru:8", "replay_from": "minari:ab/c-v0"},
            "does not support `memory`",
        ),
    ],
)
def test_bad_options_are_refused(config, options, message):
    with pytest.raises(ConfigError, match=message):
        config(**options)
