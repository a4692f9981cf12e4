"""Forecast of the faster inference: in each worker, or in one process for all of them."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from hotloop.base.rounding import format_rate
from hotloop.rollouts.planning.forecast import EnvTiming

# Core time in seconds of a request, in the worker and in the inference process together.
REQUEST_S = 1e-4
# Minimum speed-up for central inference, which gives up bitwise repeatable runs.
_MIN_SPEEDUP = 1.15


class InferenceChoice(NamedTuple):
    """The chosen kind of inference, with its forecasts.

    Attributes:
        inference: Chosen kind.
        rates: Forecast transitions per second of both kinds.
        summary: Description for the user.
    """

    inference: Literal["worker", "central"]
    rates: dict[str, float]
    summary: str

    def to_json(self) -> dict[str, Any]:
        """Return the record for the run directory."""
        return {"rates": self.rates, "summary": self.summary}


def choose_inference(
    env_timing: EnvTiming, *, num_workers: int, envs_per_worker: int, num_cores: int
) -> InferenceChoice:
    """Return the faster kind of inference by forecast.

    A worker with its own policy alternates between stepping and acting. With central inference,
    half of a worker's environments step while the other half waits: first for the end of the batch
    in progress (half a batch on average), then for its own batch. A single environment, or a vector
    environment that can't be divided, has no second half that steps meanwhile. The cores limit the
    rate of both kinds.

    Args:
        env_timing: Measured times of steps and of acting.
        num_workers: W.
        envs_per_worker: Number of environments of each worker.
        num_cores: C.
    """
    num_envs = num_workers * envs_per_worker
    # Seconds of a row of all workers with their own policies.
    local_s = max(
        env_timing.row_s(envs_per_worker),
        num_workers * env_timing.row_busy_s(envs_per_worker) / num_cores,
    )
    # Seconds of a row of all workers with central inference: of a worker, of the inference process
    # and of the cores.
    batch_size = max(1, num_envs // 2)
    batch_s = env_timing.acting_s(batch_size)
    acting_s = num_envs * batch_s / batch_size
    requests_s = num_envs * REQUEST_S / max(1.0, envs_per_worker / 2)
    steps_s, latency_s = env_timing.steps_s(envs_per_worker), 1.5 * batch_s + REQUEST_S
    worker_s = max(steps_s, steps_s / 2 + latency_s)
    if envs_per_worker == 1 or env_timing.steps_together is not None:
        worker_s = steps_s + latency_s
    computing_s = num_workers * env_timing.steps_busy_s(envs_per_worker) + acting_s + requests_s
    central_s = max(worker_s, acting_s + requests_s / 2, computing_s / num_cores)
    rates = {"worker": num_envs / local_s, "central": num_envs / central_s}
    is_central = rates["central"] > _MIN_SPEEDUP * rates["worker"]
    text = {"worker": "each worker acts by itself", "central": "one process acts for all workers"}
    chosen, other = ("central", "worker") if is_central else ("worker", "central")
    return InferenceChoice(
        chosen,
        rates,
        f"{num_workers} × {envs_per_worker} environments; {text[chosen]} (auto): forecast "
        f"{format_rate(rates[chosen])} steps/s, {format_rate(rates[other])} if {text[other]}; "
        f"{env_timing.describe(envs_per_worker, batch_size)}",
    )
