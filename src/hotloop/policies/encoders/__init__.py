"""Encoders turn observations into the features that perceptrons see.

To add one, write a file here with a class that is an `Encoder`, and put it into `ENCODERS`.
"""

from __future__ import annotations

from hotloop.envs.spaces import ObsSpec, is_image_shape
from hotloop.errors import SpaceError
from hotloop.policies.encoders.base import Encoder
from hotloop.policies.encoders.convolutional import Nature, VizDoom
from hotloop.policies.encoders.flatten import Flatten
from hotloop.policies.encoders.impala import Impala
from hotloop.policies.encoders.parts import Parts
from hotloop.policies.registry import find

ENCODERS: dict[str, type[Encoder]] = {
    "flatten": Flatten,
    "nature": Nature,
    "impala": Impala,
    "vizdoom": VizDoom,
}
"""Encoders by name, as `--network` and `config.json` have it."""

__all__ = ["ENCODERS", "Encoder", "Flatten", "choose_encoder", "make_encoder"]


def choose_encoder(obs_spec: ObsSpec) -> str:
    """Return the name of the usual encoder: `nature` of images, `impala` of small ones.

    Of what holds no images it is `flatten`. Images are bytes; those of floats are asked for.
    """
    images: list[tuple[int, ...]] = []
    if obs_spec.is_packed:
        images = [part.shape for part in obs_spec.layout if part.dtype == "uint8"]
    elif obs_spec.dtype == "uint8" and is_image_shape(obs_spec.shape):
        images = [obs_spec.shape]
    if not images:
        return "flatten"
    side = min(sorted(shape)[-2] for shape in images)
    return "nature" if side >= Nature.least_side() else "impala"


def make_encoder(name: str, obs_spec: ObsSpec, *, layer_norm: bool = False) -> Encoder:
    """Return an encoder of such observations.

    Args:
        name: in `ENCODERS`; of each image, where there are other numbers beside.
        obs_spec: what is observed.
        layer_norm: normalise its layers.

    Raises:
        UnknownNameError: there is no such encoder.
        SpaceError: it can't encode such observations.
        ConfigError: it has no layers to normalise.
    """
    kind = find(ENCODERS, "encoder", name)
    if not obs_spec.is_packed:
        if kind is not Flatten and len(obs_spec.layout) > 1:
            raise SpaceError(
                f"`network` '{name}' takes images, and these observations have none among their "
                f"{len(obs_spec.layout)} parts: choose 'perceptron'"
            )
        return kind(obs_spec, "encoder", layer_norm=layer_norm)
    return Parts(kind, obs_spec, "encoder", layer_norm=layer_norm)
