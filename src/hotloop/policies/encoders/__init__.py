"""Encoders of observations: their features are the inputs of the perceptrons.

To add an encoder, write a module here with a subclass of `Encoder`, and add it to `ENCODERS`.
"""

from __future__ import annotations

from hotloop.envs.spaces import ObsSpec, is_image_shape
from hotloop.errors import SpaceError
from hotloop.policies.encoders.base import Encoder
from hotloop.policies.encoders.composite import CompositeEncoder
from hotloop.policies.encoders.convolutional import Nature, VizDoom
from hotloop.policies.encoders.flatten import Flatten
from hotloop.policies.encoders.impala import Impala
from hotloop.policies.registry import find

ENCODERS: dict[str, type[Encoder]] = {
    "flatten": Flatten,
    "nature": Nature,
    "impala": Impala,
    "vizdoom": VizDoom,
}
"""Encoders by name, as in `--network` and `config.json`."""

__all__ = ["ENCODERS", "Encoder", "Flatten", "choose_encoder", "make_encoder"]


def choose_encoder(obs_spec: ObsSpec) -> str:
    """Return the default encoder: `nature` for images, `impala` for small ones, else `flatten`.

    Only bytes count as images. For images of floats, the user names the encoder.
    """
    images: list[tuple[int, ...]] = []
    if obs_spec.is_packed:
        images = [part.shape for part in obs_spec.layout if part.dtype == "uint8"]
    elif obs_spec.dtype == "uint8" and is_image_shape(obs_spec.shape):
        images = [obs_spec.shape]
    if not images:
        return "flatten"
    side = min(sorted(shape)[-2] for shape in images)
    return "nature" if side >= Nature.min_side() else "impala"


def make_encoder(name: str, obs_spec: ObsSpec, *, layer_norm: bool = False) -> Encoder:
    """Return an encoder for these observations.

    Args:
        name: a name in `ENCODERS`, the encoder of each image if there are several parts.
        obs_spec: the observations.
        layer_norm: whether to normalize its layers.

    Raises:
        UnknownNameError: there is no such encoder.
        SpaceError: it can't encode these observations.
        ConfigError: it has no layers to normalize.
    """
    encoder_class = find(ENCODERS, "encoder", name)
    if not obs_spec.is_packed:
        if encoder_class is not Flatten and len(obs_spec.layout) > 1:
            raise SpaceError(
                f"`network` '{name}' takes images, and these observations have none among their "
                f"{len(obs_spec.layout)} parts: choose 'perceptron'"
            )
        return encoder_class(obs_spec, "encoder", layer_norm=layer_norm)
    return CompositeEncoder(encoder_class, obs_spec, "encoder", layer_norm=layer_norm)
