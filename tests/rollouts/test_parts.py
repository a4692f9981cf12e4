"""Parts of fragments, joined by the learner."""

import numpy as np
import pytest

from hotloop.envs import make_vec
from hotloop.rollouts.fleet import WorkerStart
from hotloop.rollouts.parts import PartCollector, PartQueue
from hotloop.types import AFTER_LAST_STEP
from tests.rollouts.processes.pools import make_network, make_policy


@pytest.mark.parametrize("stop", [5, 8])
def test_the_last_observations_do_not_pin_a_part(stop):
    """The arrays of a part may be read-only views of a store, as with Ray."""
    envs = make_vec("CartPole-v1", 2)
    policy = make_policy(make_network(envs))
    sizes = {"num_rows": 8, "seed": 5, "first_env": 0}
    collector = PartCollector(envs, policy, [], start=WorkerStart(row=0), **sizes)
    collector.collect(8)
    part = collector.finish()
    envs.close()
    for array in part.fields.values():
        array.flags.writeable = False
    queue = PartQueue(first_env=0)
    queue.append(part)
    rows = queue.read(0, stop)
    assert len(queue) == (stop < 8)
    expected = part.fields["last_obs"] if stop == 8 else part.fields["obs"][stop]
    np.testing.assert_array_equal(rows.fragment.last_obs, expected)
    for name in AFTER_LAST_STEP:
        assert not any(
            np.shares_memory(getattr(rows.fragment, name), array) for array in part.fields.values()
        )
    assert rows.fragment.truncated.flags.writeable
