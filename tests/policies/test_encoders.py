"""Image encoders compared with the same layers written with torch modules."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from hotloop.envs.encoding import ObsEncoder
from hotloop.errors import ConfigError, SpaceError, UnknownNameError
from hotloop.policies import (
    ActingPolicy,
    Network,
    PolicySnapshot,
    actor,
    actor_critic,
    network_from_json,
)
from hotloop.policies.encoders import (
    ENCODERS,
    choose_encoder,
    describe_choice,
    encoded_parts,
    make_encoder,
)
from hotloop.policies.encoders.composite import _decode
from hotloop.policies.encoders.images import ImageFormat
from hotloop.policies.forward import LearnedNetwork, differentiable_operations
from hotloop.policies.heads import HEADS, Greedy
from tests.policies.test_policies import BOX, DISCRETE

FLOAT32 = differentiable_operations("float32")
MIXED_SPACE = spaces.Dict(
    view=spaces.Box(0, 255, (40, 44, 3), np.uint8),
    goal=spaces.Box(-np.inf, np.inf, (3,), np.float32),
    near=spaces.Box(0, 255, (9, 12), np.uint8),
    door=spaces.Discrete(5),
)


def spec_of(*shape, dtype=np.uint8, high=255):
    return ObsEncoder(spaces.Box(0, high, shape, dtype)).spec


def kernel(weight, size):
    """Convert a stored weight, (k · k · C, H), to torch's layout, (H, C, k, k)."""
    return weight.reshape(size, size, -1, weight.shape[-1]).permute(3, 2, 0, 1)


class Reference(nn.Module):
    """Torch modules with the encoder's layers, for images (B, C, H, W) in 0 … 1."""

    def __init__(self, name, params, prefix="encoder."):
        super().__init__()
        self.name = name
        self.params = {
            key.removeprefix(prefix): torch.from_numpy(x)
            for key, x in params.items()
            if key.startswith(prefix)
        }

    def convolve(self, x, layer, size, stride, padding=0):
        weight = self.params[f"{layer}.weight"]
        module = nn.Conv2d(x.shape[1], weight.shape[1], size, stride, padding)
        with torch.no_grad():
            module.weight.copy_(kernel(weight, size))
            module.bias.copy_(self.params[f"{layer}.bias"])
        return module(x)

    def linear(self, x, layer):
        # Channels come last in the flattened features.
        flat = x.permute(0, 2, 3, 1).reshape(len(x), -1)
        x = flat @ self.params[f"{layer}.weight"] + self.params[f"{layer}.bias"]
        if f"{layer}.scale" not in self.params:
            return x
        mean, var = x.mean(1, keepdim=True), x.var(1, correction=0, keepdim=True)
        scale, shift = self.params[f"{layer}.scale"], self.params[f"{layer}.shift"]
        return (x - mean) / (var + 1e-5).sqrt() * scale + shift

    def forward(self, x):
        if self.name == "impala":
            for section in range(3):
                x = nn.MaxPool2d(3, 2, 1)(self.convolve(x, f"{section}.0", 3, 1, 1))
                for block in (1, 3):
                    inner = self.convolve(nn.ReLU()(x), f"{section}.{block}", 3, 1, 1)
                    inner = self.convolve(nn.ReLU()(inner), f"{section}.{block + 1}", 3, 1, 1)
                    x = x + inner
            return nn.ReLU()(self.linear(nn.ReLU()(x), "3"))
        activate = nn.ReLU() if self.name == "nature" else nn.ELU()
        last = (3, 1) if self.name == "nature" else (3, 2)
        for layer, (size, stride) in enumerate(((8, 4), (4, 2), last)):
            x = activate(self.convolve(x, str(layer), size, stride))
        return activate(self.linear(x, "3"))


def perturbed(params, seed=3):
    """Return parameters that all differ from their initial values."""
    rng = np.random.default_rng(seed)
    return {
        name: x + 0.05 * rng.standard_normal(x.shape).astype(np.float32)
        for name, x in params.items()
    }


def as_tensors(params):
    return {name: torch.from_numpy(x) for name, x in params.items()}


@pytest.mark.parametrize(
    ("name", "shape", "layer_norm"),
    [
        ("nature", (4, 36, 40), False),
        ("nature", (36, 40, 4), True),
        ("impala", (36, 40, 4), False),
        ("impala", (36, 40), True),
        ("vizdoom", (36, 40), False),
        ("vizdoom", (4, 36, 40), True),
    ],
)
def test_features_match_torchs_layers(name, shape, layer_norm):
    spec = spec_of(*shape)
    network = actor_critic(
        SimpleNamespace(obs_spec=spec, action_spec=DISCRETE), network=name, layer_norm=layer_norm
    )
    params = perturbed(network.initial_parameters(1))
    obs = np.random.default_rng(2).integers(0, 256, (5, *shape), np.uint8)
    encoder = make_encoder(name, spec, layer_norm=layer_norm)
    actual = encoder.features(as_tensors(params), torch.from_numpy(obs), FLOAT32)
    images = torch.from_numpy(obs).float() / 255
    if len(shape) == 2:
        images = images[:, None]
    elif shape[-1] == 4:
        images = images.permute(0, 3, 1, 2)
    expected = Reference(name, params)(images)
    assert actual.shape == (5, encoder.num_features)
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=2e-4)
    # Observations that are scaled to 0 … 1 already give the same features.
    same = encoder.features(as_tensors(params), torch.from_numpy(obs / np.float32(255)), FLOAT32)
    torch.testing.assert_close(same, actual, rtol=1e-3, atol=2e-4)


def test_num_products():
    # The network of the paper has 20·20, 9·9 and 7·7 positions.
    nature = make_encoder("nature", spec_of(4, 84, 84))
    convolutions = 400 * 64 * 4 * 32 + 81 * 16 * 32 * 64 + 49 * 9 * 64 * 64
    assert nature.num_products == convolutions + 3136 * 512
    impala = make_encoder("impala", spec_of(8, 8, 3))
    sections = (64 * 3 * 16, 16 * 4 * 16 * 16, 16 * 16 * 32, 4 * 4 * 32 * 32, 4 * 32 * 32)
    assert impala.num_products == 9 * (sum(sections) + 4 * 32 * 32) + 32 * 256


def test_dict_observations_have_an_encoder_for_each_image():
    encoder = ObsEncoder(MIXED_SPACE)
    rows = np.zeros((6, *encoder.spec.shape), encoder.spec.dtype)
    observations = [MIXED_SPACE.sample() for _ in rows]
    for row, observation in zip(rows, observations, strict=True):
        encoder.write(observation, row)
    parts = encoder.spec.unflatten(rows)
    for name in ("view", "near", "goal"):
        expected = np.stack([observation[name] for observation in observations])
        np.testing.assert_array_equal(parts[name], expected)
        assert parts[name].dtype == expected.dtype
    assert (parts["door"].argmax(1) == [observation["door"] for observation in observations]).all()
    size = sum(part.nbytes for part in parts.values()) // len(rows)
    assert size <= encoder.spec.shape[0] < size + 8  # uint8 images take one byte per pixel

    image_encoder = make_encoder("impala", encoder.spec)
    network = actor_critic(
        SimpleNamespace(obs_spec=encoder.spec, action_spec=DISCRETE), network="impala"
    )
    params = perturbed(network.initial_parameters(1))
    actual = image_encoder.features(as_tensors(params), torch.from_numpy(rows), FLOAT32)
    names = list(MIXED_SPACE.spaces)
    expected, numbers = [], []
    for name in names:
        part = torch.from_numpy(np.ascontiguousarray(parts[name])).float()
        if name in ("view", "near"):
            image = part.permute(0, 3, 1, 2) if name == "view" else part[:, None]
            expected.append(
                Reference("impala", params, f"encoder.{names.index(name)}.")(image / 255)
            )
        else:
            numbers.append(part)
    weight, bias = (as_tensors(params)[f"encoder.numbers.{x}"] for x in ("weight", "bias"))
    expected.append(nn.ReLU()(torch.cat(numbers, 1) @ weight + bias))
    torch.testing.assert_close(actual, torch.cat(expected, 1), rtol=1e-3, atol=2e-4)


def test_decode_restores_floats_from_bytes():
    rng = np.random.default_rng(1)
    values = rng.standard_normal((7, 30)) * 10.0 ** rng.integers(-30, 30, (7, 30))
    values[0, :6] = 0.0, -0.0, 1.0, -1.0, 3.4e38, -1.2e-38
    values = values.astype(np.float32)
    actual = _decode(torch.from_numpy(values.view(np.uint8)))
    np.testing.assert_array_equal(actual, values)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_beside_images_must_be_finite(value):
    encoder = ObsEncoder(MIXED_SPACE)
    observation = MIXED_SPACE.sample()
    observation["goal"][1] = value
    with pytest.raises(ValueError, match=r"part 'goal': the observation must be finite"):
        encoder.write(observation, np.zeros(encoder.spec.shape, np.uint8))


@pytest.mark.parametrize("space", [MIXED_SPACE, spaces.Box(0, 255, (3, 36, 36), np.uint8)])
@pytest.mark.parametrize("kind", ["actor_critic", "greedy", "dueling"])
def test_acting_matches_learning(space, kind):
    spec = ObsEncoder(space).spec
    network_spaces = SimpleNamespace(obs_spec=spec, action_spec=DISCRETE)
    if kind == "actor_critic":
        network = actor_critic(network_spaces, hidden_sizes=(16,))
    else:
        network = actor(network_spaces, HEADS[kind](), hidden_sizes=(16,))
    assert not network.acts_without_torch
    assert network_from_json(network.to_json()) == network
    params = perturbed(network.initial_parameters(4))
    policy = ActingPolicy(network, PolicySnapshot(version=0, params=params))
    obs = np.random.default_rng(2).integers(0, 256, (5, *spec.shape), np.uint8)
    if spec.is_packed:
        for row in obs:
            ObsEncoder(space).write(space.sample(), row)
    learned = LearnedNetwork(network)
    head, value = learned.outputs(learned.layout.pack(params, "cpu"), torch.from_numpy(obs))
    np.testing.assert_allclose(policy.head(obs), head, rtol=1e-3, atol=2e-4)
    if value is not None:
        np.testing.assert_allclose(policy.value(obs), value, rtol=1e-3, atol=2e-4)


def test_bfloat16_convolutions_are_close_to_float32():
    spec = spec_of(4, 40, 40)
    network = actor(SimpleNamespace(obs_spec=spec, action_spec=DISCRETE), Greedy())
    flat = LearnedNetwork(network).initial(1)
    obs = torch.randint(0, 256, (6, 4, 40, 40), dtype=torch.uint8)
    exact = LearnedNetwork(network).outputs(flat, obs)[0]
    rounded = LearnedNetwork(network, precision="bfloat16").outputs(flat, obs)[0]
    assert not rounded.equal(exact)
    torch.testing.assert_close(rounded, exact, rtol=0.1, atol=0.02)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((4, 84, 84), "nature"),
        ((84, 84, 3), "nature"),
        ((64, 36), "nature"),
        ((10, 10, 4), "impala"),
        ((35, 80, 3), "impala"),
        ((128,), "flatten"),
        ((6, 7, 2), "flatten"),
        ((4, 40, 40, 3), "nature"),
        ((4, 3, 20, 20), "impala"),
        ((9, 9, 17), "flatten"),
        ((64, 64, 64), "flatten"),
        ((30, 20, 20, 3), "flatten"),
    ],
)
def test_default_encoder_of_uint8_observations(shape, expected):
    assert choose_encoder(spec_of(*shape)) == expected


@pytest.mark.parametrize("high", [1, 3, 200])
def test_bytes_of_other_bounds_are_numbers_unless_an_encoder_is_named(high):
    spec = spec_of(10, 10, high=high)
    assert choose_encoder(spec) == "flatten"
    offset, divisor = spec.byte_scale()
    assert (offset == 0).all()
    assert (divisor == high).all()
    image = ImageFormat(spec).tensor(torch.full((2, 10, 10), high, dtype=torch.uint8))
    np.testing.assert_allclose(image, np.ones((2, 1, 10, 10)), rtol=1e-6)


def test_stacked_frames_become_channels():
    frames = np.random.default_rng(0).integers(0, 256, (2, 3, 10, 12, 4), np.uint8)
    last = ImageFormat(spec_of(3, 10, 12, 4))
    first = ImageFormat(spec_of(3, 4, 10, 12))
    assert (last.num_channels, last.height, last.width) == (12, 10, 12)
    expected = frames.transpose(0, 1, 4, 2, 3).reshape(2, 12, 10, 12) / 255
    images = last.tensor(torch.from_numpy(frames))
    np.testing.assert_allclose(images, expected, atol=1e-6)
    moved = np.ascontiguousarray(frames.transpose(0, 1, 4, 2, 3))
    np.testing.assert_array_equal(first.tensor(torch.from_numpy(moved)), images)


def test_ambiguous_channels_are_those_of_the_odd_axis():
    assert ImageFormat(spec_of(9, 9, 17)).num_channels == 17
    assert ImageFormat(spec_of(17, 9, 9)).num_channels == 17


def test_parts_that_an_encoder_reads():
    grid = spaces.Box(0, 3, (10, 10), np.uint8)
    camera = spaces.Box(0, 255, (40, 44, 3), np.uint8)
    speed = spaces.Box(-1, 1, (2,), np.float32)
    boards = ObsEncoder(spaces.Dict(grid=grid, speed=speed)).spec
    assert (boards.dtype, choose_encoder(boards)) == ("float32", "flatten")
    assert [part.name for part in encoded_parts(boards)] == ["grid"]
    both = ObsEncoder(spaces.Dict(camera=camera, grid=grid)).spec
    assert (both.dtype, choose_encoder(both)) == ("uint8", "nature")
    assert [part.name for part in encoded_parts(both)] == ["camera"]
    single = ObsEncoder(spaces.Dict(camera=camera)).spec
    assert choose_encoder(single) == "nature"
    assert make_encoder("nature", single).num_features == 512


def test_mixed_parts_are_scaled_by_their_bounds_with_and_without_an_encoder():
    space = spaces.Dict(
        view=spaces.Box(0, 255, (9, 9), np.uint8), code=spaces.Box(1, 5, (3,), np.uint8)
    )
    encoder = ObsEncoder(space)
    row = np.zeros(encoder.spec.shape, np.uint8)
    view, code = np.full((9, 9), 51, np.uint8), np.array([1, 3, 5], np.uint8)
    encoder.write({"view": view, "code": code}, row)
    obs = torch.from_numpy(row[None])
    features = make_encoder("flatten", encoder.spec).features({}, obs, None)
    expected = np.concatenate([np.full(81, 0.2), [0.0, 0.5, 1.0]])
    np.testing.assert_allclose(sorted(features[0].tolist()), sorted(expected), atol=1e-6)


def test_choice_is_described():
    spec = ObsEncoder(
        spaces.Dict(
            camera=spaces.Box(0, 255, (40, 44, 3), np.uint8), grid=spaces.Box(0, 3, (9,), np.uint8)
        )
    ).spec
    assert describe_choice(spec, "nature") == (
        "byte observations: 'camera' (40, 44, 3) is an image for 'nature', scaled by its bounds "
        "0 … 255, 'grid' (9,) is numbers for a perceptron, scaled by its bounds 0 … 3 "
        "(`network` selects this)"
    )
    assert describe_choice(spec_of(4, dtype=np.float32), "flatten") == ""


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(0, 255, (3, 40, 40), np.float32),
        spaces.Box(0, 255, (40, 40, 3), np.int32),
        spaces.Box(0, 65535, (40, 40), np.uint16),
    ],
    ids=lambda space: str(space.dtype),
)
def test_images_that_are_no_bytes_are_described(space):
    spec = ObsEncoder(space).spec
    assert describe_choice(spec, choose_encoder(spec)) == (
        f"observations: {space.shape} is numbers for a perceptron, not scaled, since only bytes "
        "are images by default (`network` selects this)"
    )
    assert describe_choice(spec, "nature") == ""


def test_float_observations_use_perceptrons_by_default():
    unit_spec = spec_of(1, 40, 40, dtype=np.float32, high=1)
    assert choose_encoder(unit_spec) == "flatten"
    network = actor(
        SimpleNamespace(obs_spec=unit_spec, action_spec=DISCRETE), Greedy(), network="nature"
    )
    assert isinstance(network, Network)
    assert network.encoder == "nature"
    assert make_encoder("nature", spec_of(1, 40, 40, dtype=bool, high=1)).num_features == 512


@pytest.mark.parametrize(
    ("spec", "name", "message"),
    [
        (spec_of(3, 20, 84), "nature", r"at least 36×36 for `network` 'nature', got 20×84: choose"),
        (spec_of(3, 35, 50), "vizdoom", r"at least 36×36 for `network` 'vizdoom'"),
        (
            spec_of(64, 64, 64),
            "impala",
            r"got \(64, 64, 64\): choose `network` 'perceptron', transpose",
        ),
        (
            spec_of(3, 64, 3),
            "impala",
            r"the shortest, got \(3, 64, 3\): choose `network` 'perceptron'",
        ),
        (spec_of(4), "nature", r"must have the shape .* got \(4,\): choose `network` 'perceptron'"),
        (
            spec_of(3, 40, 40, dtype=np.float32, high=255),
            "nature",
            r"must lie within 0 … 1, but the bounds of their space are 0.0 … 255.0: use bytes",
        ),
        (
            ObsEncoder(spaces.Dict(a=spaces.Discrete(3), b=spaces.Discrete(4))).spec,
            "nature",
            "have none among their 2 parts: choose 'perceptron'",
        ),
        (ObsEncoder(MIXED_SPACE).spec, "nature", r"at least 36×36 .*, got 9×12: choose 'impala'"),
    ],
)
def test_unsuitable_images_are_refused(spec, name, message):
    with pytest.raises(SpaceError, match=message):
        actor(SimpleNamespace(obs_spec=spec, action_spec=DISCRETE), Greedy(), network=name)


def test_unknown_network_and_misplaced_layer_norm():
    image_spaces = SimpleNamespace(obs_spec=spec_of(4, 84, 84), action_spec=BOX)
    with pytest.raises(UnknownNameError, match=r"no network 'natur'; did you mean 'nature'"):
        actor_critic(image_spaces, network="natur")
    flat_spaces = SimpleNamespace(obs_spec=spec_of(4), action_spec=BOX)
    with pytest.raises(ConfigError, match="`layer_norm` is for encoders of images"):
        actor_critic(flat_spaces, layer_norm=True)
    assert set(ENCODERS) == {"flatten", "nature", "impala", "vizdoom"}
