"""Simulations that step many copies in tensors of their own: resets, state; MuJoCo Warp's."""

from __future__ import annotations

import pytest
import torch

from hotloop.envs.device.simulation import SimulatedVectorEnv
from hotloop.envs.device.specs import box_actions, numbers

CPU = torch.device("cpu")
N = 3


class Pushed:
    """Positions that are pushed; terminates beyond 2, and observes its own memory."""

    obs_spec, num_uniform, device, num_envs = numbers(1), 1, CPU, N
    action_spec = box_actions(-1.0, 1.0, (1,))

    def __init__(self, max_episode_steps=None):
        self.max_episode_steps = max_episode_steps
        self.x, self.reward = torch.zeros(N, 1), torch.zeros(N)

    def begin(self, which, uniform):
        self.x.copy_(torch.where(which[:, None], uniform, self.x))
        self.reward.zero_()

    def advance(self, action):
        self.x.add_(action)
        self.reward.copy_(action[:, 0])

    def observation(self):
        return self.x

    def outcome(self, action):
        return self.reward, self.x[:, 0].abs() > 2.0

    def tensors(self):
        return {"x": self.x}


def test_true_successors_and_resets_of_some():
    envs = SimulatedVectorEnv(Pushed())
    first = envs.reset(1)
    assert ((first > 0) & (first < 1)).all()
    action = torch.tensor([[9.0], [0.25], [-0.5]])
    one, two = envs.step(action), envs.step(action)
    assert one.reward.tolist() == two.reward.tolist() == [1.0, 0.25, -0.5]
    assert two.terminated.tolist() == [True, False, False]
    assert not two.truncated.any()
    torch.testing.assert_close(two.next_obs[0], first[0] + 2.0)
    assert 0 < two.obs[0] < 1
    assert torch.equal(two.obs[1:], two.next_obs[1:])
    torch.testing.assert_close(one.next_obs, first + torch.tensor([[1.0], [0.25], [-0.5]]))


def test_truncation():
    envs = SimulatedVectorEnv(Pushed(max_episode_steps=2))
    envs.reset(1)
    told = [envs.step(torch.zeros(N, 1)) for _ in range(4)]
    assert [x.truncated.all().item() for x in told] == [False, True, False, True]
    assert not any(x.terminated.any() for x in told)


def test_going_on_from_a_state_is_bitwise_the_same():
    envs, others = (SimulatedVectorEnv(Pushed(max_episode_steps=3)) for _ in range(2))
    action = torch.tensor([[0.9], [0.1], [-0.3]])
    envs.reset(3)
    envs.step(action)
    others.load(envs.state())
    for _ in range(6):
        for one, other in zip(envs.step(action), others.step(action), strict=True):
            assert torch.equal(one, other)


MODEL = """
<mujoco>
  <option timestep="0.02"/>
  <worldbody>
    <body><joint type="slide" axis="1 0 0"/><geom type="sphere" size=".1" mass="2"/></body>
  </worldbody>
  <actuator><motor joint="slide" ctrlrange="-1 1" ctrllimited="true"/></actuator>
</mujoco>
""".replace('type="slide"', 'name="slide" type="slide"')


def test_mujoco_warp_is_mujoco():
    pytest.importorskip("mujoco_warp")
    import mujoco

    from hotloop.envs.device.mujoco_warp import MujocoWarp

    class Slide(MujocoWarp):
        def observation(self):
            return torch.cat([self.qpos, self.qvel], -1)

        def outcome(self, action):
            return self.qvel[:, 0], self.qpos[:, 0] > 0.01

    model = mujoco.MjModel.from_xml_string(MODEL)
    envs = SimulatedVectorEnv(Slide(model, N, CPU, obs_size=2, frame_skip=2))
    obs = envs.reset(1)
    assert envs.action_spec.low == (-1.0,)
    assert 0 < obs.abs().max() < 0.01
    data = mujoco.MjData(model)
    data.qpos[:], data.qvel[:] = obs[0, :1].numpy(), obs[0, 1:].numpy()
    action = torch.tensor([[0.5], [5.0], [0.0]])
    for t in range(4):
        step = envs.step(action)
        data.ctrl[:] = 0.5
        mujoco.mj_step(model, data, nstep=2)
        if not t:
            wanted = torch.tensor([data.qpos[0], data.qvel[0]], dtype=torch.float32)
            torch.testing.assert_close(step.next_obs[0], wanted, rtol=1e-4, atol=1e-6)
    assert step.reward.dtype == torch.float32
    state = envs.state()
    wanted = envs.step(action)
    envs.load(state)
    assert torch.equal(envs.step(action).next_obs, wanted.next_obs)
