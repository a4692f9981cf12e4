"""Notations of settings: readable text, and canonical JSON that is unique for each value."""

from __future__ import annotations

import hashlib
import json
from dataclasses import fields
from typing import Any

import numpy as np

ENV = "env."  # prefix of an environment's fields, because agents have fields of the same names


def setting_text(value: Any) -> str:
    """Return a setting as text: none, true, 0.1, (0.9, 0.8)."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return f"({', '.join(setting_text(item) for item in value)})"
    return str(value) if isinstance(value, str) else json.dumps(value).replace("null", "none")


def canonical(value: Any) -> Any:
    """Return a setting as a canonical JSON value, with whole numbers as integers."""
    if isinstance(value, np.ndarray) and value.ndim == 2:  # a digest represents a matrix
        digest = hashlib.sha256(np.ascontiguousarray(value, "<f4").tobytes()).hexdigest()
        return {"shape": list(value.shape), "sha256": digest}
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [canonical(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def setting_key(value: Any) -> str:
    """Return a unique key of a value, where 1 and 1.0 are equal, but 1 and true differ."""
    return json.dumps(canonical(value), sort_keys=True, allow_nan=False)


def to_config(instance: Any) -> dict[str, Any]:
    """Return the name and all settings of an agent or an environment, as stored in the file."""
    settings = {field.name: canonical(getattr(instance, field.name)) for field in fields(instance)}
    return {"name": instance.name, **settings}
