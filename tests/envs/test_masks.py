"""Action masks of environments, in every autoreset mode."""

from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import ClipReward

from hotloop.envs import EnvSpec, make_vec
from hotloop.envs.encoding import MismatchError
from hotloop.envs.masks import MaskWriter
from hotloop.errors import MaskError
from tests.toy_envs import Allowed


def vector(mode, choices, num_envs=3):
    make = partial(Allowed, choices)
    if mode == "single":
        return make_vec(EnvSpec(make, seed=2, action_masks=True), num_envs)
    modes = {"next_step": AutoresetMode.NEXT_STEP, "wrapped": AutoresetMode.NEXT_STEP}
    modes |= {"same_step": AutoresetMode.SAME_STEP, "disabled": AutoresetMode.DISABLED}

    def factory():
        envs = SyncVectorEnv([make] * num_envs, autoreset_mode=modes[mode])
        if mode == "wrapped":  # resets take a call of their own
            envs = gymnasium.wrappers.vector.RecordEpisodeStatistics(envs)
        return envs

    return make_vec(EnvSpec(factory, seed=2, action_masks=True), num_envs)


@pytest.mark.parametrize("choices", [(6,), (3, 4)])
@pytest.mark.parametrize("mode", ["single", "next_step", "wrapped", "same_step", "disabled"])
def test_each_observation_has_its_mask(mode, choices):
    envs, size, rng = vector(mode, choices), sum(choices), np.random.default_rng(0)
    assert envs.action_spec.mask_size == size
    obs, ends = envs.reset(), set()
    np.testing.assert_array_equal(obs[:, :size], envs.mask)
    for _ in range(60):
        action = np.empty((3, len(choices)), np.int64)
        start = 0
        for k, count in enumerate(choices):
            mask = envs.mask[:, start : start + count]
            action[:, k] = [rng.choice(np.flatnonzero(row)) for row in mask]
            start += count
        step = envs.step(action.reshape(3, *envs.action_spec.shape))
        assert step.reward.min() >= 0.0
        for i in range(3):
            observed, mask = step.next_obs[i, :size], step.next_mask[i]
            np.testing.assert_array_equal(mask, True if step.terminated[i] else observed)
            ends.add((bool(step.terminated[i]), bool(step.truncated[i])))
        if mode != "wrapped" or not step.terminated.any():
            np.testing.assert_array_equal(step.obs[:, :size], step.mask)
    assert len(ends) == 3
    envs.close()


def test_masks_are_checked_and_written():
    writer = MaskWriter(make_vec(partial(Allowed, (2, 3))).action_spec)
    out = np.ones((2, 5), np.bool_)
    writer.write([[1, 0, 0, 0, 1], [0, 1, 1, 1, 1]], out)
    np.testing.assert_array_equal(out, [[1, 0, 0, 0, 1], [0, 1, 1, 1, 1]])
    objects = np.empty(2, object)
    objects[0], objects[1] = np.array([1, 1, 0, 1, 0], np.int8), None
    writer.write_from(None, None, {"action_mask": objects}, out, is_last=np.array([False, True]))
    np.testing.assert_array_equal(out, [[1, 1, 0, 1, 0], [1, 1, 1, 1, 1]])
    writer.write_from(None, None, {}, out[0], is_last=True)
    assert out[0].all()
    with pytest.raises(MismatchError, match=r"allow an action among 2 … 4, got only zeros"):
        writer.write([1, 1, 0, 0, 0], out[0])
    for wrong in (np.nan, 0.5, -1):
        with pytest.raises(MismatchError, match=f"other numbers, such as {wrong}"):
            writer.write([1, 1, wrong, 0, 1], out[0])
    with pytest.raises(MismatchError, match="must be of shape"):
        writer.write("11111", out[0])


class FailsOnce(Allowed):
    """Raise at the third step, once."""

    has_failed = False

    def step(self, action):
        if self.count == 2 and not FailsOnce.has_failed:
            FailsOnce.has_failed = True
            raise RuntimeError("the simulator diverged")
        return super().step(action)


def test_replaced_environment_has_masks():
    failures, FailsOnce.has_failed = [], False
    envs = make_vec(
        EnvSpec(partial(FailsOnce, (6,)), action_masks=True), 2, on_failure=failures.append
    )
    envs.reset()
    for _ in range(12):
        step = envs.step(envs.mask.argmax(1))
        np.testing.assert_array_equal(step.obs[:, :6], step.mask)
    assert len(failures) == 1


@pytest.mark.parametrize("how", ["none", "zeros"])
def test_wrong_mask_is_not_handled_as_a_failure(how):
    failures = []
    make = partial(Allowed, (6,), how=how)
    envs = make_vec(EnvSpec(make, action_masks=True), 2, on_failure=failures.append)

    def play():
        envs.reset()
        for _ in range(3):
            envs.step(envs.mask.argmax(1))

    with pytest.raises(MaskError, match=r"at each reset and step|got only zeros"):
        play()
    assert not failures


def test_vector_environment_without_masks_raises():
    envs = make_vec(
        EnvSpec(lambda: SyncVectorEnv([partial(Allowed, (6,), how="none")] * 2), action_masks=True),
        2,
    )
    with pytest.raises(MaskError, match="environments 0 … 1, vector step 0: `action_masks` need"):
        envs.reset()
    envs.close()


class Truncated(gymnasium.Env):
    """Episodes of three steps. The mask number `bad`, counted over all episodes, is empty."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, bad):
        self.bad, self.num_masks = bad, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self.observe()

    def step(self, action):
        self.count += 1
        obs, info = self.observe()
        return obs, 0.0, False, self.count == 3, info

    def observe(self):
        mask = np.full(2, self.num_masks != self.bad, np.int8)
        self.num_masks += 1
        return np.zeros(1, np.float32), {"action_mask": mask}


@pytest.mark.parametrize("wrap", [lambda envs: envs, partial(ClipReward, max_reward=1.0)])
@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize(
    ("bad", "place"),
    [
        (2, "episode 0, step 1"),
        (3, "episode 0, step 2"),
        (4, "episode 1, at its reset"),
        (5, "episode 1, step 0"),
    ],
)
def test_errors_name_the_episode_of_the_mask(bad, place, mode, wrap):
    def factory():
        makes = [partial(Truncated, None), partial(Truncated, bad)]
        return wrap(SyncVectorEnv(makes, autoreset_mode=mode))

    envs = make_vec(EnvSpec(factory, action_masks=True), 2)

    def play():
        envs.reset()
        for _ in range(6):
            envs.step(np.zeros(2, np.int64))

    with pytest.raises(MaskError, match=f"environment 1, {place}: .* only zeros"):
        play()
