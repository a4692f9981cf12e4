"""Encoders of observations: their features are the inputs of the perceptrons.

To add an encoder, write a module here with a subclass of `Encoder`, and add it to `ENCODERS`.
"""

from __future__ import annotations

from hotloop.envs.spaces import ObsField, ObsSpec, image_axes, is_image_shape
from hotloop.errors import SpaceError, UnknownNameError, nearest
from hotloop.policies.encoders.base import Encoder
from hotloop.policies.encoders.composite import CompositeEncoder
from hotloop.policies.encoders.convolutional import Nature, VizDoom
from hotloop.policies.encoders.flatten import Flatten
from hotloop.policies.encoders.impala import Impala

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

    Only bytes with bounds 0 … 255 count as images. For other images, the user names the encoder.
    """
    sides: list[int] = []
    for part in obs_spec.layout:
        if part.is_image:
            sides += [part.shape[axis] for axis in (image_axes(part.shape) or ())[-2:]]
    if not sides:
        return "flatten"
    return "nature" if min(sides) >= Nature.min_side() else "impala"


def describe_choice(obs_spec: ObsSpec, encoder: str) -> str:
    """Return a sentence on how a network reads bytes and images, or "" if there are none."""
    images = [] if encoder == "flatten" else encoded_parts(obs_spec)
    title, phrases = "byte observations", list[str]()
    for part in obs_spec.layout:
        name = f"{part.name!r} " if part.name else ""
        if part.byte_bounds is not None:
            low, high = part.byte_bounds
            kind = f"an image for '{encoder}'" if part in images else "numbers for a perceptron"
            phrases.append(f"{name}{part.shape} is {kind}, scaled by its bounds {low:g} … {high:g}")
        elif encoder == "flatten" and part.encoding == "box" and is_image_shape(part.shape):
            title = "observations"
            phrases.append(
                f"{name}{part.shape} is numbers for a perceptron, not scaled, since only bytes are "
                "images by default"
            )
    return f"{title}: {', '.join(phrases)} (`network` selects this)" if phrases else ""


def encoded_parts(obs_spec: ObsSpec) -> list[ObsField]:
    """Return the parts that a named encoder of images encodes.

    These are the parts with shape and bounds of images, or else all bytes whose shape fits.
    """
    parts = obs_spec.layout
    fitting = [x for x in parts if x.byte_bounds is not None and image_axes(x.shape) is not None]
    return [part for part in parts if part.is_image] or fitting


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
    if name not in ENCODERS:
        raise UnknownNameError(
            f"there is no encoder '{name}'{nearest(name, ENCODERS)}: there are "
            + ", ".join(ENCODERS)
        )
    encoder_class = ENCODERS[name]
    is_flat = encoder_class is Flatten
    if not obs_spec.is_composite or (is_flat and not obs_spec.is_packed):
        return encoder_class(obs_spec, "encoder", layer_norm=layer_norm)
    images = [] if is_flat else encoded_parts(obs_spec)
    if not is_flat and not images:
        raise SpaceError(
            f"`network` '{name}' takes images, and these observations have none among their "
            f"{len(obs_spec.layout)} parts: choose 'perceptron'"
        )
    return CompositeEncoder(encoder_class, obs_spec, images, "encoder", layer_norm=layer_norm)
