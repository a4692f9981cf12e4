import json
import subprocess
import sys

import numpy as np
import pytest
from gymnasium import spaces

from hotloop.envs.encoding import ActionDecoder, ObsEncoder
from hotloop.errors import ConfigError, MissingExtraError, OutputError
from hotloop.policies import (
    ActingPolicy,
    ObsScale,
    PolicySnapshot,
    actor,
    actor_critic,
)
from hotloop.policies.export import OPSET, export_numpy, export_onnx
from hotloop.policies.standalone import Policy
from tests.policies.nets import ActorNet, Images, Net, Spaces, WithConstants

DISCRETE = spaces.Discrete(5, start=-2)
MULTI = spaces.MultiDiscrete([3, 2, 4], start=[0, 5, -1])
BOX = spaces.Box(
    np.array([[-0.1, -np.inf], [-2.0, 0.0]], np.float32),
    np.array([[0.1, np.inf], [2.0, 0.3]], np.float32),
)
BOUNDED = spaces.Box(
    np.array([[-0.1, 3.0], [-2.0, 0.0]], np.float32),
    np.array([[0.1, 5.0], [2.0, 0.3]], np.float32),
)
PLAIN_OBS = spaces.Box(-np.inf, np.inf, (6,), np.float32)
MATRIX_OBS = spaces.Box(-1.0, 1.0, (3, 2), np.float64)
BYTE_OBS = spaces.Box(0, 255, (7,), np.uint8)
IMAGES = spaces.Box(0, 255, (8, 8, 3), np.uint8)
PARTS = spaces.Dict({"where": spaces.Discrete(4), "speed": spaces.Box(-1.0, 1.0, (2,))})

CASES = {
    "discrete": (PLAIN_OBS, DISCRETE, {}),
    "scaled": (MATRIX_OBS, DISCRETE, {"is_scaled": True, "activation": "relu"}),
    "multi-discrete": (BYTE_OBS, MULTI, {"shared_trunk": True, "is_scaled": True}),
    "box": (PARTS, BOX, {"hidden_sizes": (16,), "shared_trunk": True}),
    "linear": (BYTE_OBS, BOX, {"hidden_sizes": ()}),
    "squashed": (PARTS, BOUNDED, {"actor": "squashed_gaussian", "hidden_sizes": (16, 8)}),
    "deterministic": (
        MATRIX_OBS,
        BOUNDED,
        {"actor": "deterministic", "hidden_sizes": (16,), "activation": "tanh"},
    ),
    "values": (PLAIN_OBS, DISCRETE, {"actor": "greedy", "is_scaled": True}),
    "dueling": (PLAIN_OBS, DISCRETE, {"actor": "dueling", "hidden_sizes": (16, 8)}),
}


def specs(obs_space, action_space):
    return Spaces(ObsEncoder(obs_space).spec, ActionDecoder(action_space).spec)


def snapshot_of(network, *, is_scaled=False):
    """Weights large enough that actions differ, biases that are not zero."""
    generator = np.random.default_rng(7)
    shape = network.obs_spec.shape
    params = {
        name: (x + 0.5 * generator.standard_normal(x.shape)).astype(np.float32)
        for name, x in network.initial_parameters(3).items()
    }
    scale = None
    if is_scaled:
        mean = generator.standard_normal(shape).astype(np.float32)
        std = generator.uniform(0.5, 2.0, shape).astype(np.float32)
        scale = ObsScale(mean, std, 0.8)
    return PolicySnapshot(4, params, scale)


def make(case):
    obs_space, action_space, options = CASES[case]
    options = dict(options)
    is_scaled = options.pop("is_scaled", False)
    spaces = specs(obs_space, action_space)
    kind = options.pop("actor", None)
    network = actor(spaces, kind, **options) if kind else actor_critic(spaces, **options)
    return network, snapshot_of(network, is_scaled=is_scaled)


def some_obs(network, num_rows):
    spec, generator = network.obs_spec, np.random.default_rng(11)
    if spec.dtype == "uint8":
        return generator.integers(0, 256, (num_rows, *spec.shape), np.uint8)
    return 2 * generator.standard_normal((num_rows, *spec.shape), np.float32)


def run_onnx(path, obs):
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {"obs": obs}), strict=True))


def check_onnx(network, snapshot, path):
    policy = ActingPolicy(network, snapshot)
    for num_rows in (1, 7, 64):
        obs = some_obs(network, num_rows)
        got = run_onnx(path, obs)
        assert list(got) == ["action", "head", "value"][: 3 if policy.has_value else 2]
        action, expected = got["action"], policy.act(obs)
        assert (action.dtype, action.shape) == (expected.dtype, expected.shape)
        np.testing.assert_allclose(got["head"], policy.head(obs), atol=1e-5, rtol=1e-5)
        if policy.has_value:
            np.testing.assert_allclose(got["value"], policy.value(obs), atol=1e-5, rtol=1e-5)
        if network.action_spec.kind == "box":
            np.testing.assert_allclose(action, expected, atol=1e-5, rtol=1e-5)
        else:
            np.testing.assert_array_equal(action, expected)
    return expected


# The others are made of the same operations, which modules of the users' own have below.
@pytest.mark.parametrize("case", ["multi-discrete", "squashed", "dueling"])
def test_onnx_gives_what_the_policy_gives(tmp_path, case):
    import onnx

    network, snapshot = make(case)
    about = {"env_id": "My-v0", "timesteps": 12}
    (path,) = export_onnx(network, snapshot, tmp_path / "new" / "policy.onnx", about=about)
    action = check_onnx(network, snapshot, path)
    assert len(np.unique(action, axis=0)) > 1  # else this would say nothing
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", OPSET)]
    meta = {entry.key: entry.value for entry in model.metadata_props}
    assert (meta["hotloop.env_id"], meta["hotloop.timesteps"]) == ("My-v0", "12")
    assert json.loads(meta["hotloop.obs_layout"]) == network.obs_spec.to_json()["layout"]
    assert [path.name for path in path.parent.iterdir()] == ["policy.onnx"]


@pytest.mark.parametrize(
    ("obs_space", "action_space", "module", "is_scaled"),
    [
        (PLAIN_OBS, BOX, Net, True),
        (IMAGES, MULTI, Images, False),
        (MATRIX_OBS, DISCRETE, WithConstants, False),
    ],
)
def test_modules_of_the_users_own_become_onnx(tmp_path, obs_space, action_space, module, is_scaled):
    network = actor_critic(specs(obs_space, action_space), network=module)
    snapshot = snapshot_of(network, is_scaled=is_scaled)
    (path,) = export_onnx(network, snapshot, tmp_path / "policy.onnx")
    check_onnx(network, snapshot, path)


def test_an_actor_of_the_users_own_becomes_onnx(tmp_path):
    network = actor(specs(MATRIX_OBS, DISCRETE), "greedy", network=ActorNet)
    snapshot = snapshot_of(network)
    (path,) = export_onnx(network, snapshot, tmp_path / "policy.onnx")
    check_onnx(network, snapshot, path)


class Branches(Net):
    """What it computes depends on the values that it sees."""

    def forward(self, obs):
        if obs.abs().max() > 1e6:
            obs = obs / 1e6
        return super().forward(obs)


class CountsRows(Net):
    """The number of rows decides what it computes: a graph would keep one of both."""

    def forward(self, obs):
        head, value = super().forward(obs)
        return (head if len(obs) != 3 else head + 1.0), value


@pytest.mark.parametrize("module", [Branches, CountsRows])
def test_a_module_that_cannot_be_traced_is_one_error(capfd, tmp_path, module):
    network = actor_critic(specs(PLAIN_OBS, DISCRETE), network=module)
    path = tmp_path / "policy.onnx"
    with pytest.raises(ConfigError, match=f"{module.__name__}' can't become an ONNX graph") as told:
        export_onnx(network, snapshot_of(network), path)
    assert "\n" not in str(told.value)
    assert "".join(capfd.readouterr()) == ""  # nor does torch print its own
    assert not list(tmp_path.iterdir())


IN_A_PROCESS = """
import importlib.util, sys
for name in ("hotloop", "torch", "gymnasium", "safetensors"):
    sys.modules[name] = None  # can't be imported
import numpy as np

def refusal(call):
    try:
        call()
    except ValueError as error:
        return str(error)

for folder in sys.argv[1:]:
    spec = importlib.util.spec_from_file_location("policy", folder + "/policy.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    policy = module.Policy(folder + "/policy.npz")
    obs = np.load(folder + "/obs.npy")
    result = {"action": policy.act(obs), "head": policy.head(obs),
        "single": [policy.act(row) for row in obs],
        "single_head": [policy.head(row) for row in obs],
        "wrong_shape": refusal(lambda: policy.act(obs[:, :1])),
        "without_value": refusal(lambda: policy.value(obs)) or ""}
    if not result["without_value"]:
        result |= {"value": policy.value(obs), "single_value": [policy.value(row) for row in obs]}
    np.savez(folder + "/result.npz", **result)
"""
MEANINGS = {
    "categorical": "logits",
    "multi_categorical": "logits",
    "gaussian": "means",
    "squashed_gaussian": "squashed_gaussian",
    "deterministic": "deterministic",
    "greedy": "action_values",
    "dueling": "action_values",
}


def test_numpy_gives_what_the_policy_gives(tmp_path):
    """To the last bit, in a process that can't import hotloop or torch."""
    made = {case: make(case) for case in CASES}
    for case, (network, snapshot) in made.items():
        written = export_numpy(network, snapshot, tmp_path / case, about={"env_id": "My-v0"})
        assert [path.name for path in written] == ["policy.npz", "policy.py"]
        np.save(tmp_path / case / "obs.npy", some_obs(network, 9))
    folders = [tmp_path / case for case in CASES]
    subprocess.run([sys.executable, "-I", "-c", IN_A_PROCESS, *folders], check=True)
    for case, (network, snapshot) in made.items():
        check_numpy(tmp_path / case, network, ActingPolicy(network, snapshot))


def check_numpy(folder, network, policy):
    """Compare what the exported policy has computed with the policy itself."""
    obs = some_obs(network, 9)
    wanted = {"action": policy.act(obs), "head": policy.head(obs)}
    if policy.has_value:
        wanted["value"] = policy.value(obs)
    with np.load(folder / "result.npz") as result:
        assert "`obs` must have shape" in str(result["wrong_shape"])
        no_value = "has no value function beside it" in str(result["without_value"])
        assert no_value is not policy.has_value
        for name, expected in wanted.items():
            assert result[name].dtype == expected.dtype
            np.testing.assert_array_equal(result[name], expected)
        singles = np.stack([policy.act(row) for row in obs])
        np.testing.assert_array_equal(result["single"], singles)
        assert result["single_head"].shape == result["head"].shape
        if policy.has_value:
            assert result["single_value"].shape == (9,)
    with np.load(folder / "policy.npz") as content:
        about = json.loads(str(content["about"]))
    assert about["env_id"] == "My-v0"
    assert about["obs_layout"] == network.obs_spec.to_json()["layout"]
    assert about["head"] == MEANINGS[network.head]


RAW = {
    "dict": PARTS,
    "tuple": spaces.Tuple([BYTE_OBS, spaces.MultiDiscrete([3, 2], start=[1, -4])]),
    "discrete": spaces.Discrete(7, start=-3),
    "table": spaces.MultiDiscrete([[3, 2], [4, 5]]),
    "matrix": MATRIX_OBS,
}


@pytest.mark.parametrize("case", RAW)
def test_numpy_takes_what_the_environment_gives(tmp_path, case):
    space = RAW[case]
    space.seed(5)
    network = actor_critic(specs(space, DISCRETE))
    policy = ActingPolicy(network, snapshot_of(network))
    weights, code = policy.to_numpy_file(tmp_path / "mine.npz")
    assert code == tmp_path / "mine.py"
    alone = Policy(weights)
    given = [space.sample() for _ in range(6)]
    wanted = np.stack([policy.act(obs) for obs in given])
    assert len(set(wanted.tolist())) > 1
    np.testing.assert_array_equal(np.stack([alone.act(obs) for obs in given]), wanted)
    if isinstance(given[0], dict):
        batch = {key: np.stack([obs[key] for obs in given]) for key in given[0]}
    elif isinstance(given[0], tuple):
        batch = tuple(np.stack(part) for part in zip(*given, strict=True))
    else:
        batch = np.stack(given)
    np.testing.assert_array_equal(alone.act(batch), wanted)
    np.testing.assert_array_equal(alone.act(batch), policy.act(batch))


@pytest.mark.parametrize(
    ("space", "obs", "expected"),
    [
        (PARTS, {"where": 1}, "keys"),
        (PARTS, {"where": 4, "speed": [0.0, 0.0]}, "'where' of `obs` must be one of its categor"),
        (PARTS, {"where": 1, "speed": [0.0]}, r"part 'speed' of `obs` must have shape \(2,\)"),
        (spaces.Tuple([BYTE_OBS, BYTE_OBS]), (np.zeros(7, np.uint8),), "a tuple of 2"),
        (spaces.Discrete(3), 3, "one of its categories, got"),
    ],
)
def test_numpy_says_what_is_wrong_with_an_observation(tmp_path, space, obs, expected):
    network = actor_critic(specs(space, DISCRETE))
    weights, _ = export_numpy(network, snapshot_of(network), tmp_path)
    with pytest.raises(ValueError, match=expected):
        Policy(weights).act(obs)


def test_numpy_leaves_somebody_elses_file_alone(tmp_path):
    network, snapshot = make("linear")
    (tmp_path / "train.py").write_text("print('mine')")
    with pytest.raises(ConfigError, match=r"must leave .*train\.py alone"):
        export_numpy(network, snapshot, tmp_path / "train.npz")
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]
    export_numpy(network, snapshot, tmp_path / "other.npz")
    assert len(export_numpy(network, snapshot, tmp_path / "other.npz")) == 2  # its own, again


def test_numpy_refuses_a_module_of_the_users_own(tmp_path):
    network = actor_critic(specs(PLAIN_OBS, DISCRETE), network=Net)
    with pytest.raises(ConfigError, match=r"tests\.policies\.nets:Net.*--format onnx"):
        export_numpy(network, snapshot_of(network), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("module", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_library_names_the_extra(tmp_path, monkeypatch, module):
    network, snapshot = make("linear")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=r"pip install 'hotloop\[train,export\]'"):
        export_onnx(network, snapshot, tmp_path / "policy.onnx")


def test_a_place_that_cannot_be_written(tmp_path, monkeypatch):
    network, snapshot = make("linear")
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="can't be written"):
        export_numpy(network, snapshot, tmp_path / "file")


def test_a_wrong_graph_is_not_written(tmp_path, monkeypatch):
    """Whatever the exporter does: what is written has given what the policy gives."""
    from hotloop.policies import traced

    class Wrong(traced.TracedPolicy):
        def forward(self, obs):
            action, head, value = super().forward(obs)
            return action, head * 1.01, value

    network, snapshot = make("discrete")
    monkeypatch.setattr(traced, "TracedPolicy", Wrong)
    with pytest.raises(ConfigError, match="the graph gives other numbers"):
        export_onnx(network, snapshot, tmp_path / "policy.onnx")
    assert not list(tmp_path.iterdir())
