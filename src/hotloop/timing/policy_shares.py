"""The share of each policy in the time of a training of several policies.

The loop of each policy runs in spans named `policy NAME`. The policies act within each other's
steps, so a policy's time excludes the spans of others inside its own. The step of the games, which
all policies share, has a row of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hotloop.timing.table import duration
from hotloop.timing.tree import Node

_PREFIX = "policy "
GAMES = "the games, for all policies"
HEADINGS = ("policy", "share", "acting", "learning", "other", "total")


def policy_span(name: str) -> str:
    """Return the name of the spans of a policy."""
    return f"{_PREFIX}{name}"


def own_path(path: Sequence[str]) -> Sequence[str]:
    """Return the part of a path of spans inside its innermost policy."""
    starts = [index + 1 for index, name in enumerate(path) if name.startswith(_PREFIX)]
    return path[starts[-1] :] if starts else path


@dataclass
class PolicyShare:
    """The time of a policy.

    Attributes:
        acting_ns: choosing actions, and computing values of the observations.
        learning_ns: updates, and the preparation of their batches.
        other_ns: everything else, such as evaluations, checkpoints and compiling.
    """

    acting_ns: int = 0
    learning_ns: int = 0
    other_ns: int = 0

    @property
    def total_ns(self) -> int:
        """The sum."""
        return self.acting_ns + self.learning_ns + self.other_ns


def policy_shares(tree: Node) -> dict[str, PolicyShare]:
    """Return the time of each policy by name, and that of the games. Empty for a single policy."""
    shares: dict[str, PolicyShare] = {}

    def add(node: Node, owner: str, stage: str) -> None:
        for child in node.children.values():
            name, inner = owner, stage
            if child.name.startswith(_PREFIX):
                name = child.name.removeprefix(_PREFIX)
            elif owner:
                inner = _STAGES.get(child.name, stage)
            if inner == "acting" and child.name in _GAME_SPANS and not has_policy(child):
                shares.setdefault(GAMES, PolicyShare()).other_ns += child.total_ns
                continue
            if name:
                share = shares.setdefault(name, PolicyShare())
                field = f"{inner}_ns"
                setattr(share, field, getattr(share, field) + child.self_ns)
            add(child, name, inner)

    add(tree, "", "other")
    if GAMES in shares:  # the last row
        shares[GAMES] = shares.pop(GAMES)
    return shares


_STAGES = {
    "collect": "acting",
    "prepare": "learning",
    "update": "learning",
    "minibatch": "learning",
    "publish": "learning",
}
_GAME_SPANS = ("env_step", "env_reset")


def has_policy(node: Node) -> bool:
    """Return whether a policy acts inside a span of another one."""
    return any(inner.name.startswith(_PREFIX) for _, inner in node.walk())


def share_rows(tree: Node) -> list[tuple[str, ...]]:
    """Return a row of cells for each policy and for the games, empty for a single policy."""
    whole_ns = tree.total_ns or 1
    rows: list[tuple[str, ...]] = []
    for name, share in policy_shares(tree).items():
        parts = (share.acting_ns, share.learning_ns, share.other_ns)
        cells = ["–"] * 3 if name == GAMES else [f"{part / whole_ns:.1%}" for part in parts]
        rows.append((name, f"{share.total_ns / whole_ns:.1%}", *cells, duration(share.total_ns)))
    return rows
