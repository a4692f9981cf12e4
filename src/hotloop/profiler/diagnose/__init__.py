"""Diagnoses: reasons why a program is slow, with evidence and advice.

    for diagnosis in diagnose(session):
        print(diagnosis.title, diagnosis.gain, diagnosis.advice)
    print(bound(session))

Costs come first: every relevant sample is inherent work or part of a cost (`costs`). Causes explain
the costs (`causes`), by the functions that a line calls, by its waits, or by the structure of the
whole program. Structures whose samples are no single place, such as too many threads, are
diagnoses of their own. A healthy program gets none, and `bound` then explains where its time goes.
"""

from __future__ import annotations

from hotloop.profiler.diagnose import (
    environments,
    gpu,
    memory,
    networks,
    over_time,
    pipeline,
    python_code,
    replay,
    threads,
)
from hotloop.profiler.diagnose.causes import Cause, Explanation, Find, Structure, all_causes
from hotloop.profiler.diagnose.costs import Costs
from hotloop.profiler.diagnose.diagnosis import Diagnosis
from hotloop.profiler.diagnose.evidence import Evidence
from hotloop.profiler.diagnose.findings import describe_inherent, explain, findings
from hotloop.profiler.diagnose.limits import LIMITS
from hotloop.profiler.session import Session
from hotloop.profiler.session.catalogues import FramePattern

__all__ = [
    "Cause",
    "Diagnosis",
    "Evidence",
    "Explanation",
    "Find",
    "FramePattern",
    "banners",
    "bound",
    "diagnose",
]

STRUCTURES: dict[str, Structure] = {
    "environment-bound": environments.environment_bound,
    "transfer-dearer-than-step": environments.transfer,
    "lockstep-stragglers": environments.stragglers,
    "too-many-for-the-cores": threads.crowded_cores,
    "too-many-threads": threads.too_many_threads,
    "pegged-core": threads.pegged_core,
    "cores-taken": threads.cores_taken,
    "replay-grows": replay.sampling_grows,
    "logging": python_code.logging,
    "configuration-objects": python_code.configuration,
    "slow-argmax": python_code.slow_argmax,
    "debug-mode": python_code.debug_mode,
    "tiny-batches": networks.tiny_batches,
    "tiny-operations": networks.tiny_operations,
    "stable-baselines3": networks.stable_baselines3,
    "launch-bound": networks.launch_bound,
    "host-sync": networks.host_syncs,
    "decay": over_time.decay,
    "start-up": over_time.start_up,
    "starved-pipeline": pipeline.starved_stage,
    "gpu-waits-for-launches": gpu.waits_for_launches,
    "gpu-synchronisations": gpu.synchronizations,
    "pageable-copies": gpu.pageable_copies,
    "gpu-idle-in-environments": gpu.idle_in_environments,
    "gpu-bound": gpu.gpu_bound,
    "memory-grows": memory.growing_memory,
}
"""Functions that find hotloop's causes in the structure of a program, by name of the cause."""


def diagnose(session: Session) -> list[Diagnosis]:
    """Return the causes that slow a program down, largest time saving first."""
    evidence = Evidence(session)
    explained = _explanations(evidence)
    has_samples = evidence.has_enough_samples
    found = findings(evidence, Costs(evidence, explained)) if has_samples else []
    placed = {diagnosis.rule for diagnosis in found}
    # A cost that grows explains why the whole program slows down.
    grows = any(diagnosis.pace == "growing" and diagnosis.gain is not None for diagnosis in found)
    found += [
        explain(evidence, cause, explanation)
        for cause, explanation in explained
        if not (explanation.rows and cause.name in placed)
        and not (cause.subject == "growth" and (grows or _is_placed(explanation, found)))
    ]
    return sorted(gpu.limit_gains(evidence, found), key=lambda item: item.order)


def banners(session: Session) -> list[Diagnosis]:
    """Return what affects the whole report: busy cores, a long start-up, a leak."""
    evidence = Evidence(session)
    return [explain(evidence, *pair) for pair in _explanations(evidence, of_report=True)]


def _explanations(
    evidence: Evidence, *, of_report: bool = False
) -> list[tuple[Cause, Explanation]]:
    """Return the causes that a program's structure shows."""
    found: list[tuple[Cause, Explanation]] = []
    subjects: set[str] = set()
    for cause in all_causes():
        structure = cause.find.structure or STRUCTURES.get(cause.name)
        if structure is None or cause.is_banner != of_report or cause.subject in subjects:
            continue
        explanation = structure(evidence)
        if explanation is None:
            continue
        gain = evidence.gain(explanation.saved_ns or 0.0)
        if not cause.is_rebuild or gain >= LIMITS.rebuild_gain:
            found.append((cause, explanation))
            subjects.update(filter(None, [cause.subject]))
    return found


def _is_placed(explanation: Explanation, found: list[Diagnosis]) -> bool:
    """Return whether a diagnosis with a gain has the same most expensive lines."""
    lines = {*explanation.places}
    return any(lines & {*item.places[:2]} for item in found if item.gain is not None)


def bound(session: Session) -> str:
    """Return a sentence on where the time goes, for a program without diagnoses."""
    evidence = Evidence(session)
    if not evidence.has_enough_samples:
        seconds = evidence.num_samples * evidence.main.interval_ns / 1e9
        return (
            f"The profile is too short for a diagnosis: it has {seconds:.1f} s of samples, "
            "and 0.5 s are needed. Profile a longer run."
        )
    return describe_inherent(evidence, Costs(evidence))
