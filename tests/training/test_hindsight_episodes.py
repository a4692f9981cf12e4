"""Goals come from the same episode, whatever share of the buffer each environment holds."""

from types import SimpleNamespace

import numpy as np
import pytest

from hotloop.envs import EnvSpec, make_vec
from hotloop.errors import ConfigError
from hotloop.training.hindsight import Hindsight
from hotloop.types import Fragment
from tests.goal_envs import Reach
from tests.reference.hindsight import TransitionList

SPEC = make_vec(Reach, 1).obs_spec


def make_hindsight(num_envs, capacity, strategy):
    config = SimpleNamespace(
        hindsight=strategy,
        hindsight_share=1.0,
        buffer_size=capacity,
        seed=1,
        env_kwargs={},
        clip_reward=None,
    )
    return Hindsight(config, EnvSpec(Reach), SPEC, num_envs)


def make_fragment(num_steps, num_envs, first_env, first_goal):
    """Return a fragment in which every row achieves another goal."""
    fragment = Fragment.allocate(
        num_steps,
        num_envs,
        obs_shape=SPEC.shape,
        obs_dtype="float32",
        action_shape=(2,),
        action_dtype="float32",
        first_env=first_env,
    )
    goals = first_goal + np.arange(num_steps * num_envs).reshape(num_steps, num_envs)
    SPEC.unflatten(fragment.next_obs)["achieved_goal"][...] = goals[..., None]
    return fragment, goals


def relabeled_goals(hindsight, twin, numbers):
    obs = np.full((len(numbers), *SPEC.shape), -1, np.float32)
    for row, number in zip(obs, numbers, strict=True):
        if twin.rows[number] is not None:
            SPEC.unflatten(row)["achieved_goal"][:] = twin.rows[number][2]
    batch = SimpleNamespace(
        index=np.array(numbers, np.int64),
        obs=obs,
        next_obs=obs.copy(),
        reward=np.zeros(len(numbers), np.float32),
        terminated=np.zeros(len(numbers), np.bool_),
    )
    hindsight.relabel(batch)
    return SPEC.unflatten(batch.obs)["desired_goal"][:, 0].astype(int).tolist()


@pytest.mark.parametrize("strategy", ["future", "final"])
@pytest.mark.parametrize("seed", range(10))
def test_goals_are_those_of_the_slow_twin(strategy, seed):
    rng = np.random.default_rng(seed)
    # Each environment fails and ends with other probabilities, some nearly always.
    num_groups, group_size = rng.integers(1, 4), rng.integers(1, 4)
    num_envs = int(num_groups * group_size)
    capacity = int(rng.integers(num_envs, 60))
    fail, end = (rng.choice([0.0, 0.05, 0.5, 0.95], num_envs) for _ in range(2))
    hindsight = make_hindsight(num_envs, capacity, strategy)
    twin, goal, seen = TransitionList(num_envs, capacity), 1, {}
    for _ in range(40):
        first_env = int(rng.integers(num_groups)) * int(group_size)
        event = rng.random()
        if event < 0.1:  # a worker was replaced, or a resumed run restarts its episodes
            env = None if event < 0.03 else int(rng.integers(num_envs))
            hindsight.cut(env)
            for index in range(num_envs) if env is None else [env]:
                twin.end(index)
        elif event < 0.15:  # the buffer holds transitions that hindsight does not know
            for _ in range(int(rng.integers(1, 2 * capacity))):
                twin.add_foreign()
        elif event < 0.25:  # a checkpoint
            arrays = hindsight.to_arrays()
            hindsight = make_hindsight(num_envs, capacity, strategy)
            hindsight.load(arrays)
        fragment, goals = make_fragment(int(rng.integers(1, 9)), int(group_size), first_env, goal)
        goal += goals.size
        envs = slice(first_env, first_env + int(group_size))
        fragment.valid[...] = rng.random(goals.shape) >= fail[envs]
        fragment.truncated[...] = rng.random(goals.shape) < end[envs]
        hindsight.add(fragment, len(twin.rows))
        for (t, i), value in np.ndenumerate(goals):
            if fragment.valid[t, i]:
                twin.add(first_env + i, int(value), is_end=fragment.truncated[t, i])
            else:
                twin.end(first_env + i)
        numbers = [number for number in twin.numbers() for _ in range(3)]
        chosen = relabeled_goals(hindsight, twin, numbers)
        for number, choice in zip(numbers, chosen, strict=True):
            later = twin.later_goals(number)
            if not later:
                assert choice == -1
            elif strategy == "final":
                assert choice == later[-1]
            else:
                assert choice in later
                seen.setdefault(len(later), set()).add(later.index(choice))
    if strategy == "future":  # every later step is drawn
        assert all(ranks == set(range(n)) for n, ranks in seen.items() if n <= 3)


def test_the_buffer_must_hold_each_environment():
    with pytest.raises(ConfigError, match=r"`buffer_size` of at least 3, .* got 2: raise it"):
        make_hindsight(3, 2, "final")
