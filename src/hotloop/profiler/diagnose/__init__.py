"""Diagnoses: rules that say why a program is not faster, with evidence and advice.

    for one in diagnose(session):
        print(one.title, one.gain, one.advice)
    print(bound(session))

A rule names a cause only where removing it is worth the trouble, so a healthy program gets none;
then `bound` says what is left to gain. Its thresholds stand in its docstring, with their reasons.
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
from hotloop.profiler.diagnose.findings import findings, left_over
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
    gpu.synchronisations,
    gpu.pageable_copies,
    gpu.idle_in_environments,
)
"""Every rule, in the order in which they are asked."""


# A program is not built in another way for less.
REBUILD = 1.5


def diagnose(session: Session) -> list[Diagnosis]:
    """What keeps a program from being faster, what saves the most time first; empty: nothing found.

    Costs of the program's own lines, whether a rule knows them or not, and what rules find in the
    way it is built. Where both mean the same lines, a rule's words are taken.
    """
    evidence = Evidence(session)
    ruled = [
        one
        for rule in RULES
        if (one := rule(evidence)) is not None
        and not (one.is_rebuild and (one.gain or 0) < REBUILD)
    ]
    said = {gpu.INSTEAD_OF.get(one.rule) for one in ruled}
    ruled = [one for one in ruled if one.rule not in said]
    found: list[Diagnosis] = []
    for cost in findings(evidence, Costs(evidence)) if evidence.is_sampled else ():
        same = next((one for one in ruled if is_same(one, cost)), None)
        if same is not None:
            ruled.remove(same)
        found.append(cost if same is None else merged(same, cost))
    return sorted(gpu.bounded(evidence, [*found, *ruled]), key=lambda one: one.order)


def banners(session: Session) -> list[Diagnosis]:
    """What holds of all that is said: the cores were others', most was starting, the GPU limits."""
    evidence = Evidence(session)
    return [
        one
        for rule in (threads.cores_taken, over_time.start_up, gpu.gpu_bound)
        if (one := rule(evidence)) is not None
    ]


def is_same(rule: Diagnosis, cost: Diagnosis) -> bool:
    """Whether a rule means what a cost is."""
    return rule.rule == cost.rule or bool({*cost.places[:2]} & {*rule.places})


def merged(rule: Diagnosis, cost: Diagnosis) -> Diagnosis:
    """A rule's words, with the place, wait and pace of the cost that it explains."""
    is_there = bool({*cost.places[:2]} & {*rule.places})
    first, then = (cost, rule) if is_there else (rule, cost)
    places = tuple(dict.fromkeys([*first.places, *then.places]))
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
    """What the time of a program is, for which nothing was found, in a sentence."""
    evidence = Evidence(session)
    if not evidence.is_sampled:
        seconds = evidence.num_samples * evidence.main.interval_ns / 1e9
        return (
            f"Too little was recorded to say what could be faster: {seconds:.1f} s of samples, of "
            "half a second that are needed. Profile a longer run."
        )
    return left_over(evidence, Costs(evidence))
