import numpy as np
import pytest
import torch

from hotloop.algorithms import ppo
from hotloop.policies import ActingPolicy, ObsScale, PolicySnapshot
from hotloop.training.policy_reevaluation import reevaluate
from hotloop.types import Fragment
from tests.policies.nets import Spaces
from tests.policies.test_policies import DISCRETE, obs_spec
from tests.reference.memory import RecurrentNetworks

NUM_STEPS, NUM_ENVS, SIZE = 12, 3, 3


def experience(memory_size):
    """Return a fragment with episode ends and reset rows, different in each environment."""
    rng = np.random.default_rng(0)
    fragment = Fragment.allocate(
        *(NUM_STEPS, NUM_ENVS),
        obs_shape=(SIZE,),
        obs_dtype=np.float32,
        action_shape=(),
        action_dtype=np.int64,
        memory_size=memory_size,
    )
    for array in (fragment.obs, fragment.last_obs, fragment.next_value, fragment.memory):
        array[:] = rng.uniform(-1, 1, array.shape)
    fragment.action[:] = rng.integers(0, 3, (NUM_STEPS, NUM_ENVS))
    fragment.terminated[4, 0] = fragment.truncated[7, 0] = fragment.truncated[0, 1] = True
    fragment.valid[1, 1] = False
    fragment.terminated[-1, 2] = True
    return fragment


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_reevaluation_equals_the_network_step_by_step(kind):
    config = ppo.Config(memory=f"{kind}:4", hidden_sizes=(6,), num_envs=NUM_ENVS, num_minibatches=1)
    nets = ppo.networks(config, Spaces(obs_spec(SIZE), DISCRETE), torch.device("cpu"))
    params = nets.network.initial_parameters(0)
    scale = ObsScale(np.full(SIZE, 0.3, np.float32), np.full(SIZE, 0.5, np.float32), 1.5)
    # The acting policy has other parameters. Only its scale is used.
    acted = PolicySnapshot(0, nets.network.initial_parameters(1), scale)
    fragment = experience(nets.network.memory_size)
    policy, uploads = ActingPolicy(nets.network, acted), []

    def upload(arrays):
        uploads.append(set(arrays))
        return {name: torch.from_numpy(x) for name, x in arrays.items()}

    (result,) = reevaluate([fragment], nets, nets.initial(0), policy, 7, upload)
    assert uploads == [{"obs", "action", "memory", "begins"}]

    assert (result.age == 7 - fragment.policy_version).all()

    reference = RecurrentNetworks(params, kind)
    obs = np.concatenate([fragment.obs, fragment.last_obs[None]])
    obs = torch.from_numpy(np.clip((obs - 0.3) / 0.5, -1.5, 1.5)).double()
    is_end = fragment.terminated | fragment.truncated | ~fragment.valid
    with torch.no_grad():
        for n in range(NUM_ENVS):
            hidden_state = torch.from_numpy(fragment.memory[0, n]).double()
            values = []
            for t in range(NUM_STEPS + 1):
                if t and is_end[t - 1, n]:
                    hidden_state = torch.zeros_like(hidden_state)
                head, value, hidden_state = reference.step(obs[t, n], hidden_state)
                values.append(value.item())
                if t < NUM_STEPS:
                    log_prob = head.log_softmax(0)[fragment.action[t, n]].item()
                    assert result.log_prob[t, n] == pytest.approx(log_prob, abs=1e-5)
            next_values = np.where(is_end[:, n], fragment.next_value[:, n], values[1:])
            np.testing.assert_allclose(result.value[:, n], values[:-1], atol=1e-5)
            np.testing.assert_allclose(result.next_value[:, n], next_values, atol=1e-5)
    assert all(x.shape == (NUM_STEPS, NUM_ENVS) for x in result)
    assert all(x.dtype == np.float32 for x in result[:3])
