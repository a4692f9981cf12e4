"""Find the coefficients of `hotloop.ops.activations.rational_tanh`.

    python -m bench tanh

x P(x²) / Q(x²) is fitted to tanh on (0, 9] with minimal largest relative error. Each round solves a
linear problem with the previous denominator and raises the weights where the error is large.
"""

from __future__ import annotations

import argparse

import numpy as np

from hotloop.types import Array

BOUND = 9.0


def fit(degree_p: int, degree_q: int, rounds: int = 2000) -> tuple[float, Array, Array]:
    """Return the largest relative error, and the coefficients of P and Q in x², constant first."""
    x = np.linspace(1e-3, BOUND, 6000)
    target = np.tanh(x)
    # Scale to [0, 1] so that the powers are comparable.
    powers = (x / BOUND)[:, None] ** (2 * np.arange(max(degree_p, degree_q) + 1))
    columns = np.concatenate(
        [(x / target)[:, None] * powers[:, : degree_p + 1], -powers[:, 1 : degree_q + 1]], axis=1
    )
    weights, q_before = np.ones_like(x), np.ones_like(x)
    best = (np.inf, np.zeros(0), np.zeros(0))
    for _ in range(rounds):
        scale = np.sqrt(weights) / np.abs(q_before)
        solution = np.linalg.lstsq(columns * scale[:, None], scale, rcond=None)[0]
        p = solution[: degree_p + 1]
        q = np.concatenate([[1.0], solution[degree_p + 1 :]])
        q_before = powers[:, : degree_q + 1] @ q
        error = np.abs(x * (powers[:, : degree_p + 1] @ p) / q_before / target - 1.0)
        if error.max() < best[0]:
            best = (error.max(), p, q)
        weights = weights * (error / error.max() + 1e-3)
        weights /= weights.max()
    scale = BOUND ** (-2.0 * np.arange(max(degree_p, degree_q) + 1))
    return float(best[0]), best[1] * scale[: degree_p + 1], best[2] * scale[: degree_q + 1]


def main() -> int:
    """Print the coefficients."""
    argparse.ArgumentParser(prog="python -m bench tanh", description=__doc__).parse_args()
    error, p, q = fit(4, 4)
    print(f"largest relative error {error:.2e}")
    for name, coefficients in (("_P", p), ("_Q", q)):
        print(name, "=", tuple(float(c) for c in coefficients))
    return 0
