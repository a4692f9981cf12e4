"""Diagnoses: rules that explain why a program is slow, with evidence and advice.

    for diagnosis in diagnose(session):
        print(diagnosis.title, diagnosis.gain, diagnosis.advice)
    print(bound(session))

A rule names a cause only if removing it is worthwhile. A healthy program gets no diagnosis, and
`bound` then explains where its time goes. Each rule's docstring gives its thresholds and why.
"""

from __future__ import annotations

from dataclasses import replace

from hotloop.profiler.diagnose import (
    environments,
    gpu,
    networks,
    over_time,
    pipeline,
    python_code,
    replay,
    threads,
)
from hotloop.profiler.diagnose.costs import Costs
from hotloop.profiler.diagnose.diagnosis import Diagnosis
from hotloop.profiler.diagnose.evidence import Evidence, Rule
from hotloop.profiler.diagnose.findings import describe_inherent, findings
from hotloop.profiler.session import Session

__all__ = ["RULES", "Diagnosis", "Evidence", "Rule", "banners", "bound", "diagnose"]

RULES: tuple[Rule, ...] = (
    environments.environment_bound,
    environments.transfer,
    environments.stragglers,
    threads.crowded_cores,
    threads.too_many_threads,
    threads.pegged_core,
    replay.sampling_grows,
    python_code.logging,
    python_code.configuration,
    python_code.slow_argmax,
    networks.tiny_batches,
    networks.tiny_operations,
    networks.launch_bound,
    networks.host_syncs,
    python_code.debug_mode,
    over_time.decay,
    pipeline.starved_stage,
    gpu.waits_for_launches,
    gpu.synchronizations,
    gpu.pageable_copies,
    gpu.idle_in_environments,
)
"""Every rule, in the order of evaluation."""


# A smaller gain does not justify building the program in another way.
MIN_REBUILD_GAIN = 1.5


def diagnose(session: Session) -> list[Diagnosis]:
    """Return the causes that slow a program down, largest time saving first.

    The list combines costs at the user's own lines, of known or unknown kind, with what the rules
    find in the program's structure. If a cost and a rule concern the same lines, the rule's text
    is used.
    """
    evidence = Evidence(session)
    ruled = [
        diagnosis
        for rule in RULES
        if (diagnosis := rule(evidence)) is not None
        and not (diagnosis.is_rebuild and (diagnosis.gain or 0) < MIN_REBUILD_GAIN)
    ]
    superseded = {gpu.SUPERSEDES.get(diagnosis.rule) for diagnosis in ruled}
    ruled = [diagnosis for diagnosis in ruled if diagnosis.rule not in superseded]
    found: list[Diagnosis] = []
    for cost in findings(evidence, Costs(evidence)) if evidence.has_enough_samples else ():
        same = next((diagnosis for diagnosis in ruled if is_same_cause(diagnosis, cost)), None)
        if same is not None:
            ruled.remove(same)
        found.append(cost if same is None else merge(same, cost))
    return sorted(gpu.limit_gains(evidence, [*found, *ruled]), key=lambda item: item.order)


def banners(session: Session) -> list[Diagnosis]:
    """Return what affects the whole report: busy cores, a dominant start-up, a busy GPU."""
    evidence = Evidence(session)
    return [
        diagnosis
        for rule in (threads.cores_taken, over_time.start_up, gpu.gpu_bound)
        if (diagnosis := rule(evidence)) is not None
    ]


def is_same_cause(rule: Diagnosis, cost: Diagnosis) -> bool:
    """Return whether a rule's diagnosis and a cost concern the same cause."""
    return rule.rule == cost.rule or bool({*cost.places[:2]} & {*rule.places})


def merge(rule: Diagnosis, cost: Diagnosis) -> Diagnosis:
    """Return a rule's diagnosis with the places, wait and pace of the cost that it explains."""
    has_same_places = bool({*cost.places[:2]} & {*rule.places})
    first, second = (cost, rule) if has_same_places else (rule, cost)
    places = tuple(dict.fromkeys([*first.places, *second.places]))
    gain = rule.gain if rule.gain is not None else cost.gain
    if gain is not None and cost.gain is not None:
        gain = max(gain, cost.gain)
    return replace(
        rule,
        gain=gain,
        places=places,
        wait=cost.wait,
        pace=cost.pace,
        loop_gain=cost.loop_gain,
        evidence=tuple(dict.fromkeys([*rule.evidence, *cost.evidence])),
    )


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
