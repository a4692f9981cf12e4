"""Action masks: every observation has its own, and forbidden actions are never chosen."""

import warnings

import numpy as np
import pytest
import torch
from gymnasium.vector import SyncVectorEnv

from hotloop import evaluate, load
from hotloop.algorithms import dqn, ppo
from hotloop.cli import main
from hotloop.envs import make_vec
from hotloop.errors import ConfigError, EnvironmentFailure, MaskError, ShapeError, SpaceError
from hotloop.policies import ActingPolicy, EpsilonGreedy, PolicySnapshot, actor, actor_critic
from hotloop.policies.forward import LearnedNetwork
from hotloop.policies.heads import HEADS
from tests.envs.test_masks import vector
from tests.toy_envs import Allowed, MaskedDict
from tests.training import test_off_policy
from tests.training.test_off_policy import assert_same_weights, watch

ENV = "tests.toy_envs:Allowed"
CHOICES = {"one": (6,), "several": (3, 4)}
SHORT = {
    ppo: {"num_steps": 16, "num_minibatches": 2, "update_epochs": 2, "total_timesteps": 192},
    dqn: {**test_off_policy.SMALL, "total_timesteps": 120},
}
CASES = [(ppo, "one"), (ppo, "several"), (dqn, "one")]
each_algorithm = pytest.mark.parametrize(("algorithm", "choices"), CASES)


def config_of(algorithm, tmp_path, name="run", choices="one", **options):
    fields = {"num_envs": 4, "action_masks": True, "execution": "eager", **SHORT[algorithm]}
    fields |= {"env_id": ENV, "env_kwargs": {"choices": [*CHOICES[choices]]}}
    return algorithm.Config(**{**fields, "run_dir": str(tmp_path / name), **options})


def allows(masks, action, choices):
    """Return whether each action is allowed, checked one by one."""
    action, start, is_allowed = action.reshape(len(masks), -1), 0, np.ones(len(masks), bool)
    for k, count in enumerate(choices):
        for i in range(len(masks)):
            is_allowed[i] &= bool(masks[i, start + action[i, k]])
        start += count
    return is_allowed


@pytest.mark.parametrize(
    ("algorithm", "choices", "options"),
    [
        (ppo, "one", {}),
        (ppo, "several", {"normalize_obs": True, "clip_obs": 0.5}),
        (ppo, "several", {"workers": 2}),
        (dqn, "one", {}),
        (dqn, "one", {"normalize_obs": True, "clip_obs": 0.5, "workers": 2}),
    ],
)
def test_batches_hold_each_rows_mask(tmp_path, monkeypatch, algorithm, choices, options):
    size, continuations = sum(CHOICES[choices]), []

    def check(learner, batch, td_error):
        obs, action = batch.obs.numpy(), batch.action.numpy()
        assert allows(obs[:, :size] > 0, action, CHOICES[choices]).all()
        if algorithm is ppo:
            np.testing.assert_array_equal(obs[:, :size] > 0, batch.mask)
        else:
            observed, mask = batch.next_obs.numpy()[:, :size], batch.next_mask.numpy()
            continues = batch.discount.numpy() > 0
            np.testing.assert_array_equal((observed > 0)[continues], mask[continues])
            assert mask[~continues].all()
            continuations.extend(continues.tolist())

    watch(monkeypatch, check)
    result = algorithm.train(config_of(algorithm, tmp_path, choices=choices, **options))
    assert result.mean_return >= 0.0
    assert algorithm is ppo or len(set(continuations)) == 2


# --- policies -------------------------------------------------------------------------------------


def make_network(head, choices, *, num_rows=64, seed=0):
    """Return a network with large outputs, its parameters, observations and their masks."""
    envs = vector("single", choices, num_rows)
    network = actor_critic(envs) if head == "categorical" else actor(envs, HEADS[head]())
    params = {name: 3 * x + 0.1 for name, x in network.initial_parameters(seed).items()}
    obs, mask = envs.reset(), envs.mask
    envs.close()
    return network, params, obs, mask


@pytest.mark.parametrize("choices", [(6,), (3, 4)])
def test_log_probabilities_and_entropy_are_of_allowed_actions_alone(choices):
    network, params, obs, masks = make_network("categorical", choices)
    learned = LearnedNetwork(network)
    flat = learned.layout.pack(params, "cpu").requires_grad_()
    policy = ActingPolicy(network, PolicySnapshot(0, params))
    head = policy.head(obs)
    noise = policy.draw_noise(1, first_step=0, num_steps=1, num_envs=len(obs))
    action = np.empty((len(obs), *network.action_spec.shape), np.int64)
    outputs = learned.outputs(flat, torch.tensor(obs))[0].detach()
    np.testing.assert_allclose(head, outputs, rtol=1e-5, atol=1e-5)
    policy.choose(head, noise[0], action, masks)
    inputs = {"obs": obs, "action": action, "mask": masks}
    tensors = {name: torch.tensor(x) for name, x in inputs.items()}
    log_prob, entropy, _ = learned.evaluate(flat, **tensors)
    with pytest.raises(ConfigError, match="needs `mask`, got none"):
        learned.evaluate(flat, tensors["obs"], tensors["action"])
    expected, expected_entropy, start = np.zeros(len(obs)), np.zeros(len(obs)), 0
    for k, count in enumerate(choices):
        part = head[:, start : start + count].astype(np.float64)
        mask = masks[:, start : start + count]
        for i in range(len(obs)):
            allowed = np.flatnonzero(mask[i])
            p = np.exp(part[i, allowed] - part[i, allowed].max())
            p /= p.sum()
            chosen = int(action.reshape(len(obs), -1)[i, k])
            assert chosen in allowed
            expected[i] += np.log(p[list(allowed).index(chosen)])
            expected_entropy[i] -= (p * np.log(p)).sum()
        start += count
    np.testing.assert_allclose(log_prob.detach(), expected, atol=1e-5)
    np.testing.assert_allclose(entropy.detach(), expected_entropy, atol=1e-5)
    np.testing.assert_allclose(policy.log_prob(head[None], noise, action[None])[0], expected, 1e-4)
    assert allows(masks, policy.greedy(obs, mask=masks), choices).all()


def test_no_gradient_reaches_forbidden_actions():
    network, params, obs, mask = make_network("categorical", (6,))
    learned = LearnedNetwork(network)
    mask[:] = [1, 1, 0, 1, 0, 0]
    flat = learned.layout.pack(params, "cpu").requires_grad_()
    action = torch.tensor([0, 1, 3, 3] * 16)
    log_prob, entropy, _ = learned.evaluate(
        flat, torch.tensor(obs), action, mask=torch.tensor(mask)
    )
    (grad,) = torch.autograd.grad((log_prob * torch.linspace(-1, 1, 64) + entropy).mean(), flat)
    assert grad.isfinite().all()
    last = max(name for name in params if name.startswith("policy.") and "bias" in name)
    bias_grad = learned.layout.unpack(grad)[last]
    assert (bias_grad != 0).tolist() == [True, True, False, True, False, False]


def test_exploration_is_uniform_among_allowed_actions():
    network, params, obs, _ = make_network("greedy", (6,), num_rows=1)
    obs, mask = np.repeat(obs, 8, 0), np.repeat(np.array([[0, 1, 0, 1, 1, 0]]) > 0, 8, 0)
    exploration = EpsilonGreedy(start=1.0, end=1.0)
    policy = ActingPolicy(network, PolicySnapshot(0, params), exploration=exploration)
    noise = policy.draw_noise(3, first_step=0, num_steps=2000, num_envs=8)
    actions, head = np.empty((2000, 8), np.int64), np.empty((8, 6), np.float32)
    for step_noise, action in zip(noise, actions, strict=True):
        policy.draw(obs, step_noise, head, action, mask=mask)
    shares = np.bincount(actions.reshape(-1), minlength=6) / actions.size
    np.testing.assert_allclose(shares, [0, 1 / 3, 0, 1 / 3, 1 / 3, 0], atol=0.015)
    assert (
        policy.greedy(obs, mask=mask) == np.where(head[0] > -1e29, head[0], -np.inf).argmax()
    ).all()


@pytest.mark.parametrize("is_dueling", [False, True])
def test_distributions_of_returns_with_masks(is_dueling):
    """NumPy, torch and ε-greedy exploration agree on the allowed actions and the best of them."""
    name = "dueling_return_distribution" if is_dueling else "return_distribution"
    network, params, obs, mask = make_network(name, (6,))
    policy = ActingPolicy(network, PolicySnapshot(0, params))
    logits = policy.head(obs).astype(np.float64).reshape(64, 6, -1)
    probs = np.exp(logits - logits.max(2, keepdims=True))
    means = probs / probs.sum(2, keepdims=True) @ network.head.atoms
    expected = np.where(mask, means, -np.inf).argmax(1)
    assert (means.argmax(1) != expected).any()
    np.testing.assert_array_equal(policy.greedy(obs, mask=mask), expected)
    torch_mask = torch.tensor(mask).repeat_interleave(network.head.num_atoms, 1)
    outputs = torch.tensor(policy.head(obs)).masked_fill(~torch_mask, -1e30)
    np.testing.assert_array_equal(network.head.mode(outputs), expected)
    exploring = EpsilonGreedy(start=1.0, end=1.0)
    policy = ActingPolicy(network, PolicySnapshot(0, params), exploration=exploring)
    noise = policy.draw_noise(3, first_step=0, num_steps=50, num_envs=64)
    action, head = np.empty(64, np.int64), np.empty((64, network.head_size), np.float32)
    counts = np.zeros((64, 6))
    for step_noise in noise:
        policy.draw(obs, step_noise, head, action, mask=mask)
        counts[np.arange(64), action] += 1
    assert not counts[~mask].any()
    assert (counts[mask] > 0).mean() > 0.99


@pytest.mark.parametrize("double", [False, True])
def test_targets_use_the_best_allowed_next_action(double):
    network, params, obs, mask = make_network("greedy", (6,))
    config = dqn.Config(double=double, learning_rate=1e-9)
    nets = LearnedNetwork(network)
    state = dqn.init(nets, config)
    state.target.copy_(nets.layout.pack(params, "cpu"))
    next_obs, next_mask = np.roll(obs, 1, 0), np.roll(mask, 1, 0)
    rows, action = np.arange(64), mask.argmax(1)
    q, online, target = (
        nets.outputs(p, torch.tensor(o))[0].numpy()
        for p, o in ((state.params, obs), (state.params, next_obs), (state.target, next_obs))
    )
    expected = np.empty(64)
    for i in rows:
        allowed = np.flatnonzero(next_mask[i])
        best = max(allowed, key=lambda a: (online if double else target)[i, a])
        expected[i] = abs(q[i, action[i]] - 0.5 * target[i, best])
    ones = torch.ones(64)
    parts = (torch.tensor(x) for x in (obs, action))
    batch = dqn.ReplayBatch(*parts, 0 * ones, torch.tensor(next_obs), 0.5 * ones, ones)
    batch = batch._replace(next_mask=torch.tensor(next_mask))
    hyper = dqn.Hyper(*(torch.tensor(x) for x in (1e-9, 1.0, 0.0)))
    _, td_error = dqn.update(state, batch, None, hyper, nets=nets, config=config)
    np.testing.assert_allclose(td_error, expected, rtol=1e-4, atol=1e-5)


# --- runs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("algorithm", "choices"), [(ppo, "several"), (dqn, "one")])
def test_workers_give_the_weights_of_the_inline_backend(tmp_path, algorithm, choices):
    for name, backend in (("a", "processes"), ("b", "inline")):
        options = {"workers": 2, "backend": backend, "choices": choices}
        algorithm.train(config_of(algorithm, tmp_path, name, **options))
    assert_same_weights(tmp_path / "a", tmp_path / "b")


@pytest.mark.slow
def test_a_buffer_on_the_device_gives_the_weights_of_the_host(tmp_path):
    for place in ("host", "device"):
        options = {"replay_device": place, "n_step": 3, "save_replay": True}
        # Both draw by priority on the host, from the same numbers.
        options |= {"replay": "prioritized", "train_frequency": 1, "num_envs": 1}
        options |= {"update_to_data": 1.0, "total_timesteps": 80, "normalize_obs": True}
        dqn.train(config_of(dqn, tmp_path, place, **options))
    assert_same_weights(tmp_path / "host", tmp_path / "device")


@pytest.mark.parametrize("algorithm", [ppo, dqn])
def test_masks_help_where_few_actions_are_allowed(tmp_path, algorithm):
    """Two of 30 actions are allowed. Any other action ends the episode."""
    returns = []
    options = {ppo: {"num_steps": 32, "learning_rate": 3e-3}, dqn: {"learning_rate": 1e-3}}
    for masks in (True, False):
        run_options = {
            "total_timesteps": 1000,
            "env_kwargs": {"choices": [30]},
            **options[algorithm],
        }
        config = config_of(algorithm, tmp_path, str(masks), action_masks=masks, **run_options)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            returns.append(algorithm.train(config).mean_return)
    assert returns[0] > 2.0
    assert returns[1] < 0.5


@each_algorithm
def test_a_trained_policy_acts_by_masks(tmp_path, algorithm, choices, capsys):
    config = config_of(algorithm, tmp_path, choices=choices, eval_interval=100, eval_episodes=4)
    run = algorithm.train(config).run_dir
    assert min(evaluate(run, episodes=8).returns) >= 0.0
    policy, env = load(run), Allowed(CHOICES[choices])
    obs, info = env.reset(seed=3)
    for deterministic in (True, False):
        action = policy.act(obs, action_mask=info["action_mask"], deterministic=deterministic)
        assert allows(info["action_mask"][None], action[None], CHOICES[choices]).all()
    rows, masks = np.stack([obs] * 3), np.stack([info["action_mask"]] * 3)
    together = policy.act(rows, action_mask=masks.astype(bool))
    np.testing.assert_array_equal(together, [policy.act(obs, action_mask=masks[0])] * 3)
    with pytest.raises(ShapeError, match=r"pass `info\['action_mask'\]`, as this policy was"):
        policy.act(obs)
    with pytest.raises(ShapeError, match="must allow an action"):
        policy.act(obs, action_mask=0 * info["action_mask"])
    with pytest.raises(ShapeError, match="must be of shape"):
        policy.act(obs, action_mask=info["action_mask"][1:])
    for kind, name in (("onnx", "policy.onnx"), ("numpy", "policy.npz")):
        assert main(["export", str(run), "--format", kind, "--output", str(tmp_path / name)]) == 0
        assert "action_mask  " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        (ppo, {"network": "tests.policies.nets:Net", "workers": 1}),
        (dqn, {"dueling": True, "double": False}),
    ],
)
def test_dict_observations_and_other_networks(tmp_path, algorithm, options):
    env_id = "tests.toy_envs:MaskedDict"
    config = config_of(algorithm, tmp_path, env_id=env_id, env_kwargs={}, **options)
    run = algorithm.train(config).run_dir
    assert min(evaluate(run, episodes=6).returns) >= 0.0
    policy, env = load(run), MaskedDict()
    obs, info = env.reset(seed=1)
    for _ in range(4):
        action = policy.act(obs, action_mask=info["action_mask"])
        assert info["action_mask"][action] == 1
        obs, _, _, _, info = env.step(int(action))


def test_policy_without_masks_refuses_a_mask(tmp_path):
    options = {"env_id": "CartPole-v1", "env_kwargs": {}, "action_masks": False}
    result = ppo.train(config_of(ppo, tmp_path, **options))
    with pytest.raises(ConfigError, match="trained with `action_masks`: leave it out"):
        result.policy.act(np.zeros(4), action_mask=[1, 1])


@pytest.mark.parametrize(("algorithm", "choices"), [(ppo, "several"), (dqn, "one")])
@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("none", r"need `info\['action_mask'\]` at each reset and step, or .* with \[\]"),
        ("short", r"must be of shape \(\d,\), 1 for allowed actions"),
        ("twos", "got other numbers, such as 2"),
        ("zeros", "episode 0, step 1: `action_mask` must allow an action.*got only zeros"),
    ],
)
def test_invalid_masks_are_refused(tmp_path, algorithm, choices, how, message):
    kwargs = {"choices": [*CHOICES[choices]], "how": how}
    with pytest.raises(EnvironmentFailure, match=message):
        algorithm.train(config_of(algorithm, tmp_path, env_kwargs=kwargs))


def test_a_worker_with_wrong_masks_is_not_replaced(tmp_path):
    config = config_of(ppo, tmp_path, env_id="CartPole-v1", env_kwargs={}, workers=2)
    with pytest.raises(MaskError, match=r"^worker \d: CartPole-v1, .*at its reset: `action_masks`"):
        ppo.train(config)


@pytest.mark.parametrize(
    ("algorithm", "env_id", "error", "message"),
    [
        (ppo, "CartPole-v1", EnvironmentFailure, "or leave the option out"),
        (ppo, "Pendulum-v1", SpaceError, "need discrete actions, got a box space"),
    ],
)
def test_environments_without_masks_are_refused(tmp_path, algorithm, env_id, error, message):
    with pytest.raises(error, match=message):
        algorithm.train(config_of(algorithm, tmp_path, env_id=env_id, env_kwargs={}))


@pytest.mark.parametrize("num_envs", [None, 3])
def test_ignored_masks_are_warned_about_once(num_envs):
    def factory():
        return Allowed() if num_envs is None else SyncVectorEnv([Allowed] * num_envs)

    envs = make_vec(factory, 3)
    with pytest.warns(
        UserWarning, match=r"this run ignores: train ppo, appo or dqn with `action_masks`"
    ):
        envs.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        envs.reset()
    envs.close()
