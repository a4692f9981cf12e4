"""Why a program is not faster: rules that look at a session, each with its evidence and advice.

    for one in diagnose(session):
        print(one.title, one.gain, one.advice)
    print(bound(session))

A rule names a cause only where removing it is worth the trouble, so a healthy program gets none;
then `bound` says what is left to gain. Its thresholds stand in its docstring, with their reasons.
"""

from __future__ import annotations

from hotloop.profiler.diagnose import (
    environments,
    networks,
    over_time,
    pipeline,
    python_code,
    replay,
    threads,
)
from hotloop.profiler.diagnose.diagnosis import Diagnosis
from hotloop.profiler.diagnose.evidence import Evidence, Rule, spent
from hotloop.profiler.session import Session
from hotloop.profiler.session.stages import OF_SPAN, STAGES

__all__ = ["RULES", "Diagnosis", "Evidence", "Rule", "bound", "diagnose"]

RULES: tuple[Rule, ...] = (
    environments.environment_bound,
    environments.transfer,
    environments.stragglers,
    threads.too_many_threads,
    threads.cores_taken,
    threads.pegged_core,
    replay.sampling_grows,
    python_code.logging,
    python_code.configuration,
    python_code.hot_function,
    networks.tiny_batches,
    networks.tiny_operations,
    networks.launch_bound,
    networks.host_syncs,
    over_time.start_up,
    over_time.decay,
    pipeline.starved_stage,
)


def diagnose(session: Session) -> list[Diagnosis]:
    """What keeps a program from being faster, what saves the most time first; empty: nothing found.

    By the estimated time saved times the confidence.
    """
    evidence = Evidence(session)
    found = [one for rule in RULES if (one := rule(evidence)) is not None]
    return sorted(found, key=lambda one: -one.weight)


def bound(session: Session) -> str:
    """How much could be gained outside of what takes most of the time, in a sentence."""
    evidence = Evidence(session)
    if evidence.is_sampled:
        taken = {stage: evidence.stage_ns(stage) for stage in STAGES}
        whole = spent(evidence.rows).ns
    else:
        taken = {
            stage: float(
                evidence.spans(
                    evidence.main, *(name for name, of in OF_SPAN.items() if of == stage)
                )[1]
            )
            for stage in set(OF_SPAN.values()) - {"wait"}
        }
        whole = float(evidence.main.duration_ns)
    stage = max(taken, key=lambda one: taken[one])
    if not taken[stage] or not whole:
        return "Too little was recorded to say how far the program is from its bound."
    share = min(1.0, taken[stage] / whole)
    what = {
        "env": "the environments' own steps",
        "other": "the program's own code",
        # What of it is blocked was left out.
        "wait": "handing over from process to process",
    }.get(stage, STAGES[stage])
    return (
        f"{share:.0%} of the time goes into {what}: at most {1 / share:.2f}× is left in the rest "
        "of this program."
    )
