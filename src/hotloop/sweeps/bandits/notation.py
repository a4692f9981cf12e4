"""Notation of settings: text for people, and JSON that is the same for the same value."""

from __future__ import annotations

import hashlib
import json
from dataclasses import fields
from typing import Any

import numpy as np

ENV = "env."  # before an environment's field: agents have fields of the same names


def text_of(value: Any) -> str:
    """A setting as it is written: none, true, 0.1, (0.9, 0.8)."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return f"({', '.join(text_of(one) for one in value)})"
    return str(value) if isinstance(value, str) else json.dumps(value).replace("null", "none")


def canonical(value: Any) -> Any:
    """A setting as JSON, the same text for the same value: whole numbers as integers."""
    if isinstance(value, np.ndarray) and value.ndim == 2:  # a matrix is told by its digest
        digest = hashlib.sha256(np.ascontiguousarray(value, "<f4").tobytes()).hexdigest()
        return {"shape": list(value.shape), "sha256": digest}
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [canonical(one) for one in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def key_of(value: Any) -> str:
    """What tells values apart as the file does: 1 and 1.0 are one, 1 and true are not."""
    return json.dumps(canonical(value), sort_keys=True, allow_nan=False)


def described(thing: Any) -> dict[str, Any]:
    """An agent or an environment, its name and all its settings, as the file has it."""
    settings = {one.name: canonical(getattr(thing, one.name)) for one in fields(thing)}
    return {"name": thing.name, **settings}
