"""The state of a rollout in a checkpoint that anyone may have written."""

import numpy as np
import pytest

from hotloop.errors import CheckpointError
from hotloop.rollouts.state import running_episodes


def test_actions_of_a_running_episode_have_rows():
    (episode,) = running_episodes({"actions.0": np.zeros((3, 1))}, [(5, "hash")])
    assert len(episode.actions) == 3
    with pytest.raises(CheckpointError, match=r"`actions.0` must have a row for each step"):
        running_episodes({"actions.0": np.zeros(())}, [(5, "hash")])
