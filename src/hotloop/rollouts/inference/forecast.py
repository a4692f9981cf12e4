"""Forecast of who should act: each worker for itself, or one process for all of them."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from hotloop.rollouts.forecast import Measured

# What a request costs the worker that asks and the process that answers, in seconds of a core.
ASKING_S = 1e-4
# By so much central inference must be faster: it gives up runs that repeat to the last bit.
_MARGIN = 1.15


class InferenceChoice(NamedTuple):
    """Who acts, and why.

    Attributes:
        inference: who.
        rates: transitions collected a second, forecast of each.
        summary: a sentence for the user.
    """

    inference: Literal["worker", "central"]
    rates: dict[str, float]
    summary: str

    def to_json(self) -> dict[str, Any]:
        """Return what a run keeps of it."""
        return {"rates": self.rates, "summary": self.summary}


def choose_inference(
    measured: Measured, *, num_workers: int, envs_per_worker: int, num_cores: int
) -> InferenceChoice:
    """Forecast both, choose the faster one.

    A worker that acts for itself steps and acts by turns, for its own environments alone. Where
    one process acts for all workers, half of a worker's environments step while the other half
    waits: for the batch that is in the making, half of one on average, and for its own. A single
    environment waits, and so does a vector environment that can't be divided. Either way no more
    is done in a second than the cores can do.

    Args:
        measured: what a step takes, and acting for so many.
        num_workers: W.
        envs_per_worker: environments of each.
        num_cores: C.
    """
    step_s = measured.mean_s
    computing_s = step_s * min(1.0, measured.busy_share)
    own_s = measured.acting_s(envs_per_worker) / envs_per_worker
    together = max(1, num_workers * envs_per_worker // 2)
    central_s = measured.acting_s(together) / together
    asking_s = ASKING_S / max(1.0, envs_per_worker / 2)
    latency_s = 1.5 * measured.acting_s(together) + ASKING_S
    steps_s = envs_per_worker * step_s
    if envs_per_worker == 1 or measured.steps_together is not None:
        round_s = steps_s + latency_s
    else:
        round_s = max(steps_s, steps_s / 2 + latency_s)
    rates = {
        "worker": min(num_workers / (step_s + own_s), num_cores / (computing_s + own_s)),
        "central": min(
            num_workers * envs_per_worker / round_s,
            1.0 / (central_s + asking_s / 2),
            num_cores / (computing_s + central_s + asking_s),
        ),
    }
    is_central = rates["central"] > _MARGIN * rates["worker"]
    told = {"worker": "each worker acts by itself", "central": "one process acts for all workers"}
    taken, other = ("central", "worker") if is_central else ("worker", "central")
    return InferenceChoice(
        taken,
        rates,
        f"{num_workers} × {envs_per_worker} environments; {told[taken]} (auto): "
        f"{rates[taken]:,.0f} steps/s of collecting forecast, {rates[other]:,.0f} where "
        f"{told[other]}; a step takes {1e3 * step_s:.3g} ms, acting for {envs_per_worker} "
        f"{1e3 * own_s * envs_per_worker:.3g} ms, for {together} {1e3 * central_s * together:.3g} "
        "ms",
    )
