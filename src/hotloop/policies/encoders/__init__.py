"""Encoders turn observations into the features that perceptrons see.

To add one, write a file here with a class that is an `Encoder`, and put it into `ENCODERS`.
Networks take the first one there that accepts what is observed.
"""

from __future__ import annotations

from hotloop.envs.spaces import ObsSpec
from hotloop.errors import SpaceError
from hotloop.policies.encoders.base import Encoder
from hotloop.policies.encoders.flatten import Flatten

ENCODERS: dict[str, type[Encoder]] = {"flatten": Flatten}

__all__ = ["ENCODERS", "Encoder", "Flatten", "choose_encoder"]


def choose_encoder(obs_spec: ObsSpec) -> str:
    """Return the name of the first encoder that accepts what is observed.

    Raises:
        SpaceError: none does; says why the first one does not.
    """
    refusals: list[SpaceError] = []
    for name, encoder in ENCODERS.items():
        try:
            encoder(obs_spec)
        except SpaceError as error:
            refusals.append(error)
        else:
            return name
    raise refusals[0]
