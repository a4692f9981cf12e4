"""Encoders: what turns an observation into the features that a perceptron sees.

To add one, write a file here with a class that is an `Encoder`, and put it into `ENCODERS`.
"""

from __future__ import annotations

from hotloop.policies.encoders.base import Encoder
from hotloop.policies.encoders.flatten import Flatten

ENCODERS: dict[str, type[Encoder]] = {"flatten": Flatten}

__all__ = ["ENCODERS", "Encoder", "Flatten"]
