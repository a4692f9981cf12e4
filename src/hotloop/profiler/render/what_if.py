"""The table of measured effects, for the terminal and the page."""

from __future__ import annotations

from hotloop.profiler.what_if.result import Effect, WhatIf

HEADINGS = ("what if it were faster", "elasticity", "samples", "twice as fast")
_MAX_PLACE = 42


def rows(result: WhatIf) -> list[tuple[str, ...]]:
    """Return the cells of the table, without its headings."""
    return [
        (
            _shortened(effect.place),
            f"{effect.elasticity:.2f} ± {effect.error:.2f}",
            f"{effect.share:.2f}",
            f"{effect.twice_as_fast:.2f}×",
        )
        for effect in result.effects
    ]


def sentences(result: WhatIf) -> list[str]:
    """Return how the effects were measured, and what limits the program."""
    if result.problem:
        return [f"what if: nothing was measured: {result.problem}"]
    pairs = min((effect.pairs for effect in result.effects), default=0)
    texts = [
        f"progress: {result.progress}, {result.rate:,.1f}/s; {pairs} or more pairs of windows of "
        f"{result.window_s:.1f} s; the delays took {max(0.0, result.slowdown):.0%} of the time"
    ]
    bottleneck, busiest = result.bottleneck, result.busiest
    if bottleneck is None:
        texts.append("none of these places limits the program measurably")
    elif busiest is not None and _is_less(busiest, bottleneck):
        texts.append(
            f"{bottleneck.place} limits the program; {busiest.place} is the busiest, but "
            "does not limit it as much"
        )
    return [*texts, *result.notes]


def _is_less(effect: Effect, other: Effect) -> bool:
    """Return whether an effect is smaller than another one, beyond their errors."""
    return effect.elasticity + effect.error < other.elasticity - other.error


def _shortened(place: str) -> str:
    return place if len(place) <= _MAX_PLACE else f"{place[: _MAX_PLACE - 1]}…"
