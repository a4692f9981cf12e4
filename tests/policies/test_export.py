import json
import re
import subprocess
import sys

import numpy as np
import pytest
from gymnasium import spaces

from hotloop.envs.action_decoder import ActionDecoder
from hotloop.envs.encoding import ObsEncoder
from hotloop.envs.masks import with_masks
from hotloop.errors import ConfigError, MissingExtraError, OutputError, install_command
from hotloop.policies import (
    ActingPolicy,
    ObsScale,
    PolicySnapshot,
    TrainedPolicy,
    actor,
    actor_critic,
)
from hotloop.policies.export import OPSET, export_numpy, export_onnx
from hotloop.policies.export.standalone import Policy
from hotloop.policies.heads import (
    HEADS,
    Categorical,
    Deterministic,
    Dueling,
    DuelingReturnDistribution,
    Gaussian,
    Greedy,
    Hybrid,
    MultiCategorical,
    ReturnDistribution,
    ScaledGaussian,
    SquashedGaussian,
)
from hotloop.policies.heads.base import MASKED
from tests.policies.nets import ActorNet, Images, Net, Spaces, WithConstants

DISCRETE = spaces.Discrete(5, start=-2)
MULTI = spaces.MultiDiscrete([3, 2, 4], start=[0, 5, -1])
BOX = spaces.Box(
    np.array([[-0.3, -np.inf], [-2.0, 0.0]], np.float32),
    np.array([[0.3, np.inf], [2.0, 1.0]], np.float32),
)
FAR_BOX = spaces.Box(
    np.array([[-0.1, -np.inf], [-2.0, 10.3]], np.float32),
    np.array([[0.1, np.inf], [2.0, 30.3]], np.float32),
)
BOUNDED = spaces.Box(
    np.array([[-0.1, 3.0], [-2.0, 0.0]], np.float32), np.array([[0.1, 5.0], [2.0, 0.3]], np.float32)
)
MIXED = spaces.Tuple((DISCRETE, FAR_BOX, spaces.MultiBinary(2), MULTI))
BOXES = spaces.Dict(turn=BOUNDED, push=spaces.Box(-1.0, 2.0, (), np.float64))
FLAT_OBS = spaces.Box(-np.inf, np.inf, (6,), np.float32)
MATRIX_OBS = spaces.Box(-1.0, 1.0, (3, 2), np.float64)
UINT8_OBS = spaces.Box(0, 255, (7,), np.uint8)
IMAGES = spaces.Box(0, 255, (8, 8, 3), np.uint8)
PARTS = spaces.Dict({"where": spaces.Discrete(4), "speed": spaces.Box(-1.0, 1.0, (2,))})

CASES = {
    "discrete": (FLAT_OBS, DISCRETE, {}),
    "scaled": (MATRIX_OBS, DISCRETE, {"is_scaled": True, "activation": "relu"}),
    "multi-discrete": (UINT8_OBS, MULTI, {"shared_trunk": True, "is_scaled": True}),
    "box": (PARTS, BOX, {"hidden_sizes": (16,), "shared_trunk": True}),
    "linear": (UINT8_OBS, BOX, {"hidden_sizes": ()}),
    "far box": (FLAT_OBS, FAR_BOX, {"hidden_sizes": (16,), "is_scaled": True}),
    "squashed": (PARTS, BOUNDED, {"actor": "squashed_gaussian", "hidden_sizes": (16, 8)}),
    "deterministic": (
        MATRIX_OBS,
        BOUNDED,
        {"actor": "deterministic", "hidden_sizes": (16,), "activation": "tanh"},
    ),
    "values": (FLAT_OBS, DISCRETE, {"actor": "greedy", "is_scaled": True}),
    "dueling": (FLAT_OBS, DISCRETE, {"actor": "dueling", "hidden_sizes": (16, 8)}),
    "returns": (FLAT_OBS, DISCRETE, {"actor": "return_distribution", "hidden_sizes": (16,)}),
    "dueling returns": (
        FLAT_OBS,
        DISCRETE,
        {"actor": "dueling_return_distribution", "hidden_sizes": (16,)},
    ),
}


def specs(obs_space, action_space):
    return Spaces(ObsEncoder(obs_space).spec, ActionDecoder(action_space).spec)


def snapshot_of(network, *, is_scaled=False):
    """Return a snapshot with weights large enough for actions to differ, and nonzero biases."""
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
    network = actor(spaces, HEADS[kind](), **options) if kind else actor_critic(spaces, **options)
    return network, snapshot_of(network, is_scaled=is_scaled)


def random_obs(network, num_rows):
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
    policy = TrainedPolicy(ActingPolicy(network, snapshot))
    for num_rows in (1, 7, 64):
        obs = random_obs(network, num_rows)
        outputs = run_onnx(path, obs)
        assert list(outputs) == ["action", "head", "value"][: 3 if network.has_value else 2]
        action, expected = outputs["action"], policy.act(obs)
        assert (action.dtype, action.shape) == (expected.dtype, expected.shape)
        np.testing.assert_allclose(outputs["head"], policy.head(obs), atol=1e-5, rtol=1e-5)
        if network.has_value:
            np.testing.assert_allclose(outputs["value"], policy.value(obs), atol=1e-5, rtol=1e-5)
        if network.action_spec.kind == "box":
            np.testing.assert_allclose(action, expected, atol=1e-5, rtol=1e-5)
        else:
            np.testing.assert_array_equal(action, expected)
    return expected


# The other cases consist of the same operations. User modules are tested below.
@pytest.mark.parametrize("case", ["multi-discrete", "squashed", "dueling", "returns"])
def test_onnx_matches_the_policy(tmp_path, case):
    import onnx

    network, snapshot = make(case)
    metadata = {"env_id": "My-v0", "timesteps": 12}
    (path,) = export_onnx(network, snapshot, tmp_path / "new" / "policy.onnx", metadata=metadata)
    action = check_onnx(network, snapshot, path)
    assert len(np.unique(action, axis=0)) > 1  # equal actions would prove nothing
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", OPSET)]
    stored = {entry.key: entry.value for entry in model.metadata_props}
    assert (stored["hotloop.env_id"], stored["hotloop.timesteps"]) == ("My-v0", "12")
    assert json.loads(stored["hotloop.obs_layout"]) == network.obs_spec.to_json()["layout"]
    assert [path.name for path in path.parent.iterdir()] == ["policy.onnx"]


@pytest.mark.parametrize(
    ("obs_space", "action_space", "module", "is_scaled"),
    [
        (FLAT_OBS, FAR_BOX, Net, True),
        (IMAGES, MULTI, Images, False),
        (MATRIX_OBS, DISCRETE, WithConstants, False),
    ],
)
def test_user_modules_are_exported_to_onnx(tmp_path, obs_space, action_space, module, is_scaled):
    network = actor_critic(specs(obs_space, action_space), network=module)
    snapshot = snapshot_of(network, is_scaled=is_scaled)
    (path,) = export_onnx(network, snapshot, tmp_path / "policy.onnx")
    check_onnx(network, snapshot, path)


def test_user_actor_is_exported_to_onnx(tmp_path):
    network = actor(specs(MATRIX_OBS, DISCRETE), Greedy(), network=ActorNet)
    snapshot = snapshot_of(network)
    (path,) = export_onnx(network, snapshot, tmp_path / "policy.onnx")
    check_onnx(network, snapshot, path)


class Branches(Net):
    """A module with a branch on observed values."""

    def forward(self, obs):
        if obs.abs().max() > 1e6:
            obs = obs / 1e6
        return super().forward(obs)


class CountsRows(Net):
    """A module with a branch on the number of rows. A graph would keep one of the two."""

    def forward(self, obs):
        head, value = super().forward(obs)
        return (head if len(obs) != 3 else head + 1.0), value


@pytest.mark.parametrize("module", [Branches, CountsRows])
def test_untraceable_module_raises_one_error(capfd, tmp_path, module):
    network = actor_critic(specs(FLAT_OBS, DISCRETE), network=module)
    path = tmp_path / "policy.onnx"
    with pytest.raises(ConfigError, match=f"{module.__name__}' can't become an ONNX graph") as e:
        export_onnx(network, snapshot_of(network), path)
    assert "\n" not in str(e.value)
    assert "".join(capfd.readouterr()) == ""  # torch prints nothing either
    assert not list(tmp_path.iterdir())


PROCESS_SCRIPT = """
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
    Categorical: "logits",
    MultiCategorical: "logits",
    Gaussian: "means",
    ScaledGaussian: "means",
    SquashedGaussian: "squashed_gaussian",
    Deterministic: "deterministic",
    Greedy: "action_values",
    Dueling: "action_values",
    ReturnDistribution: "return_logits",
    DuelingReturnDistribution: "return_logits",
}


def test_numpy_matches_the_policy(tmp_path):
    """Outputs are bitwise equal, in a process that cannot import hotloop or torch."""
    policies = {case: make(case) for case in CASES}
    heads = {type(network.head) for network, _ in policies.values()}
    assert heads == MEANINGS.keys() == {*HEADS.values()} - {Hybrid}  # which is tested below
    for case, (network, snapshot) in policies.items():
        written = export_numpy(network, snapshot, tmp_path / case, metadata={"env_id": "My-v0"})
        assert [path.name for path in written] == ["policy.npz", "policy.py"]
        np.save(tmp_path / case / "obs.npy", random_obs(network, 9))
    folders = [tmp_path / case for case in CASES]
    subprocess.run([sys.executable, "-I", "-c", PROCESS_SCRIPT, *folders], check=True)
    for case, (network, snapshot) in policies.items():
        check_numpy(tmp_path / case, network, TrainedPolicy(ActingPolicy(network, snapshot)))


def check_numpy(folder, network, policy):
    """Compare the outputs of the exported policy with the policy's."""
    obs = random_obs(network, 9)
    expected_outputs = {"action": policy.act(obs), "head": policy.head(obs)}
    if network.has_value:
        expected_outputs["value"] = policy.value(obs)
    with np.load(folder / "result.npz") as result:
        assert "`obs` must have shape" in str(result["wrong_shape"])
        no_value = "has no value function: call `head`" in str(result["without_value"])
        assert no_value is not network.has_value
        for name, expected in expected_outputs.items():
            assert result[name].dtype == expected.dtype
            np.testing.assert_array_equal(result[name], expected)
        singles = np.stack([policy.act(row) for row in obs])
        np.testing.assert_array_equal(result["single"], singles)
        assert result["single_head"].shape == result["head"].shape
        if network.has_value:
            assert result["single_value"].shape == (9,)
    with np.load(folder / "policy.npz") as content:
        metadata = json.loads(str(content["about"]))
    assert metadata["env_id"] == "My-v0"
    assert metadata["obs_layout"] == network.obs_spec.to_json()["layout"]
    assert metadata["head"] == MEANINGS[type(network.head)]


RAW_SPACES = {
    "dict": PARTS,
    "tuple": spaces.Tuple([UINT8_OBS, spaces.MultiDiscrete([3, 2], start=[1, -4])]),
    "discrete": spaces.Discrete(7, start=-3),
    "table": spaces.MultiDiscrete([[3, 2], [4, 5]]),
    "matrix": MATRIX_OBS,
    "number": spaces.Box(-1, 1, (), np.float32),
}


@pytest.mark.parametrize("case", RAW_SPACES)
def test_numpy_accepts_raw_observations(tmp_path, case):
    space = RAW_SPACES[case]
    space.seed(5)
    network = actor_critic(specs(space, DISCRETE))
    policy = TrainedPolicy(ActingPolicy(network, snapshot_of(network)))
    weights, code = policy.to_numpy_file(tmp_path / "mine.npz")
    assert code == tmp_path / "mine.py"
    exported = Policy(weights)
    observations = [space.sample() for _ in range(6)]
    expected = np.stack([policy.act(obs) for obs in observations])
    assert len(set(expected.tolist())) > 1
    np.testing.assert_array_equal(np.stack([exported.act(obs) for obs in observations]), expected)
    if isinstance(observations[0], dict):
        batch = {key: np.stack([obs[key] for obs in observations]) for key in observations[0]}
    elif isinstance(observations[0], tuple):
        batch = tuple(np.stack(part) for part in zip(*observations, strict=True))
    else:
        batch = np.stack(observations)
        batch = batch[:, None] if case == "number" else batch
    np.testing.assert_array_equal(exported.act(batch), expected)
    np.testing.assert_array_equal(exported.act(batch), policy.act(batch))


@pytest.mark.parametrize(
    ("space", "obs", "expected"),
    [
        (PARTS, {"where": 1}, "keys"),
        (PARTS, {"where": 4, "speed": [0.0, 0.0]}, "'where' of `obs` must be one of its categor"),
        (PARTS, {"where": 1, "speed": [0.0]}, r"part 'speed' of `obs` must have shape \(2,\)"),
        (spaces.Tuple([UINT8_OBS, UINT8_OBS]), (np.zeros(7, np.uint8),), "a tuple of 2"),
        (spaces.Discrete(3), 3, "one of its categories, got"),
    ],
)
def test_numpy_rejects_bad_observations(tmp_path, space, obs, expected):
    network = actor_critic(specs(space, DISCRETE))
    weights, _ = export_numpy(network, snapshot_of(network), tmp_path)
    with pytest.raises(ValueError, match=expected):
        Policy(weights).act(obs)


def test_numpy_export_does_not_overwrite_other_files(tmp_path):
    network, snapshot = make("linear")
    (tmp_path / "train.py").write_text("print('mine')")
    with pytest.raises(ConfigError, match=r"would overwrite .*train\.py, which"):
        export_numpy(network, snapshot, tmp_path / "train.npz")
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]
    export_numpy(network, snapshot, tmp_path / "other.npz")
    assert len(export_numpy(network, snapshot, tmp_path / "other.npz")) == 2  # its own files


def test_numpy_export_refuses_user_modules(tmp_path):
    network = actor_critic(specs(FLAT_OBS, DISCRETE), network=Net)
    with pytest.raises(ConfigError, match=r"tests\.policies\.nets:Net.*--format onnx"):
        export_numpy(network, snapshot_of(network), tmp_path)
    assert not list(tmp_path.iterdir())
    images = actor_critic(specs(IMAGES, DISCRETE), network="impala")
    with pytest.raises(ConfigError, match=r"compute network 'impala', .*--format onnx"):
        export_numpy(images, snapshot_of(images), tmp_path)


@pytest.mark.parametrize("module", ["onnx", "onnxscript", "onnxruntime"])
def test_missing_library_names_the_extra(tmp_path, monkeypatch, module):
    network, snapshot = make("linear")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=re.escape(install_command("train,export"))):
        export_onnx(network, snapshot, tmp_path / "policy.onnx")


def test_unwritable_target_raises(tmp_path, monkeypatch):
    network, snapshot = make("linear")
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="can't be written"):
        export_numpy(network, snapshot, tmp_path / "file")


def test_wrong_graph_is_not_written(tmp_path, monkeypatch):
    """The exported graph is compared with the policy before it is written."""
    from hotloop.policies.export import traced_policy

    class Wrong(traced_policy.TracedPolicy):
        def forward(self, obs, memory=None, action_mask=None):
            action, head, value = super().forward(obs)
            return action, head * 1.01, value

    network, snapshot = make("discrete")
    monkeypatch.setattr(traced_policy, "TracedPolicy", Wrong)
    with pytest.raises(ConfigError, match="the graph computes other numbers"):
        export_onnx(network, snapshot, tmp_path / "policy.onnx")
    assert not list(tmp_path.iterdir())


def test_masks_of_distributions_forbid_all_outputs_of_an_action(tmp_path):
    import onnxruntime

    masked = with_masks(ActionDecoder(DISCRETE).spec)
    head = HEADS["return_distribution"](0.0, 2.0, 3)
    network = actor(Spaces(ObsEncoder(FLAT_OBS).spec, masked), head, hidden_sizes=(8,))
    snapshot, obs = snapshot_of(network), random_obs(network, 32)
    (path,) = export_onnx(network, snapshot, tmp_path / "policy.onnx")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    mask = np.random.default_rng(0).random((32, 5)) < 0.5
    mask[:, 2] = True
    action, outputs = session.run(["action", "head"], {"obs": obs, "action_mask": mask})
    expected = TrainedPolicy(ActingPolicy(network, snapshot)).act(obs, action_mask=mask)
    np.testing.assert_array_equal(action, expected)
    np.testing.assert_array_equal(outputs == np.float32(MASKED), np.repeat(~mask, 3, axis=1))


@pytest.mark.parametrize(("action_space", "memory"), [(DISCRETE, "gru:4"), (MULTI, None)])
def test_exported_policies_take_masks(tmp_path, action_space, memory):
    import onnxruntime

    masked = with_masks(ActionDecoder(action_space).spec)
    network = actor_critic(Spaces(ObsEncoder(PARTS).spec, masked), memory=memory)
    snapshot = snapshot_of(network)
    policy = TrainedPolicy(ActingPolicy(network, snapshot))
    (path,) = export_onnx(network, snapshot, tmp_path / "policy.onnx")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    expected_inputs = ["obs", *(["memory"] if memory else []), "action_mask"]
    assert [x.name for x in session.get_inputs()] == expected_inputs
    alone = Policy(export_numpy(network, snapshot, tmp_path / "numpy")[0])
    obs, rng = random_obs(network, 32), np.random.default_rng(0)
    mask, start = np.zeros((32, masked.mask_size), np.bool_), 0
    for count in masked.num_choices:  # one or two actions of each component
        mask[np.arange(32), start + rng.integers(0, count, 32)] = True
        mask[np.arange(32), start + rng.integers(0, count, 32)] = True
        start += count
    expected = policy.act(obs, policy.new_memory(32), action_mask=mask)
    inputs = {"obs": obs, "action_mask": mask}
    if memory:
        inputs["memory"] = policy.new_memory(32)
    action, head = session.run(["action", "head"], inputs)
    np.testing.assert_array_equal(action, expected)
    np.testing.assert_array_equal(head == np.float32(MASKED), ~mask)
    memory_rows = alone.new_memory(32)
    np.testing.assert_array_equal(alone.act(obs, memory_rows, mask.astype(np.int8)), expected)
    row = alone.act(obs[0], alone.new_memory(), mask[0])
    np.testing.assert_array_equal(row, expected[0])
    assert (expected != policy.act(obs, policy.new_memory(32), action_mask=mask | True)).any()
    with pytest.raises(ValueError, match=r"`action_mask` must be of shape .* got none"):
        alone.act(obs, alone.new_memory(32))
    for wrong in (np.nan, -1, 2):
        with pytest.raises(ValueError, match=r"`action_mask` must be 1 for .* other values"):
            alone.act(obs, alone.new_memory(32), np.where(mask, wrong, 0))
    start = len(mask.T) - masked.num_choices[-1]
    with pytest.raises(ValueError, match="`action_mask` must allow an action, got only zeros"):
        alone.act(obs, alone.new_memory(32), mask & (np.arange(masked.mask_size) < start))


@pytest.mark.parametrize("case", ["dict", "masked"])
def test_exports_return_each_part_of_an_action(tmp_path, case):
    import onnxruntime

    space = BOXES if case == "dict" else MIXED
    made = specs(FLAT_OBS, space)
    if case == "masked":
        made = Spaces(made.obs_spec, with_masks(made.action_spec))
    network = actor(made, SquashedGaussian()) if case == "dict" else actor_critic(made)
    snapshot = snapshot_of(network, is_scaled=True)
    policy = TrainedPolicy(ActingPolicy(network, snapshot))
    (path,) = export_onnx(network, snapshot, tmp_path / "policy.onnx")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    alone = Policy(export_numpy(network, snapshot, tmp_path / "numpy")[0])
    obs, mask, inputs = random_obs(network, 32), None, {}
    if case == "masked":
        mask = np.ones((32, 5 + 4 + 9), np.bool_)
        mask[:, [0, 3, 5, 9, 14]] = False
        inputs["action_mask"] = mask
    expected = policy.act(obs, action_mask=mask)
    exported, single = (
        alone.act(obs, None, mask),
        policy.act(obs[3], action_mask=mask[3] if inputs else None),
    )
    alone_single = alone.act(obs[3], None, mask[3] if inputs else None)
    keys = list(expected) if case == "dict" else range(4)
    assert type(exported) is type(expected) is (dict if case == "dict" else tuple)
    graph = session.run([f"action.{key}" for key in keys], {"obs": obs, **inputs})
    assert space.contains(single)
    for key, part in zip(keys, graph, strict=True):
        assert exported[key].dtype == expected[key].dtype
        np.testing.assert_allclose(part, expected[key], atol=1e-5, rtol=1e-5)
        np.testing.assert_array_equal(exported[key], expected[key])
        np.testing.assert_array_equal(alone_single[key], single[key])
        assert len(np.unique(expected[key], axis=0)) > 1
    if case == "masked":  # the choices 0 and 3 from −2, the first light off
        assert not np.isin(expected[0], (-2, 1)).any()
        assert expected[2][:, 0].all()


def test_masks_of_exported_policies_come_from_dicts_or_are_refused(tmp_path):
    encoder, spec = ObsEncoder(PARTS), ActionDecoder(DISCRETE).spec
    raw = PARTS.sample()
    for action_spec in (spec, with_masks(spec)):
        network = actor_critic(Spaces(encoder.spec, action_spec))
        snapshot = snapshot_of(network)
        policy = TrainedPolicy(ActingPolicy(network, snapshot))
        alone = Policy(export_numpy(network, snapshot, tmp_path / str(action_spec.is_masked))[0])
        mask = np.zeros(spec.num_choices[0], np.int8)
        if action_spec.is_masked:
            for mask[-1], mask[0] in ((0, 1), (1, 0)):
                obs = {**raw, "action_mask": mask}
                assert alone.act(obs) == policy.act(obs) == spec.start + mask.argmax()
        else:
            with pytest.raises(ValueError, match="`action_mask` is not for this policy"):
                alone.act(raw, None, mask | 1)
