"""Environments for the evaluation of one policy, in which fixed policies act for other agents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hotloop.envs import EnvSpec
from hotloop.envs.game_factory import make_views
from hotloop.envs.pettingzoo_envs import PettingZooEnvs
from hotloop.errors import CheckpointError
from hotloop.policies import ActingPolicy
from hotloop.runs import RunDirectory
from hotloop.training.assignment import assign


class Partner:
    """A policy that acts for the agents of a view with its most probable actions.

    Args:
        view: its agents.
        policy: returns the policy, which may change between two episodes.
    """

    def __init__(self, view: PettingZooEnvs, policy: Callable[[], ActingPolicy]) -> None:
        self._view, self._find_policy = view, policy

    def reset(self) -> None:
        """See `Others.reset`."""
        self._policy = self._find_policy()
        self._view.reset()
        self._memory = self._policy.new_memory(self._view.num_envs)

    def act(self) -> None:
        """See `Others.act`."""
        obs, mask = self._view.next_inputs()
        step = self._view.step(self._policy.greedy(obs, self._memory, mask))
        if self._memory is not None:
            self._memory[step.terminated | step.truncated | ~step.valid] = 0.0


def make_partnered(
    spec: EnvSpec,
    num_envs: int | None,
    policies: str | Callable[[Any], str],
    name: str,
    find_policy: Callable[[str], ActingPolicy],
) -> PettingZooEnvs:
    """Return the agents of one policy as rows, in games whose other agents have fixed policies.

    Args:
        spec: the environments.
        num_envs: the rows of the policy; None: those of one game.
        policies: see `assign`.
        name: the policy.
        find_policy: returns another policy, when the environments are reset.
    """

    def assign_first(agents: Sequence[Any]) -> Mapping[str, Sequence[Any]]:
        groups = assign(policies, agents)
        if name not in groups:
            raise CheckpointError(
                f"`policies` have no '{name}', but {', '.join(groups)}: keep the name of the "
                "policy's directory"
            )
        return {name: groups[name], **groups}

    views = make_views(spec, num_envs, assign_first, leader=name)
    view = views[name]
    last = view
    for other, partner_view in views.items():
        if other != name:
            last.others = Partner(partner_view, lambda other=other: find_policy(other))
            last = partner_view
    return view


def evaluation_environments(
    run: RunDirectory, spec: EnvSpec, num_envs: int | None, *, is_trusted: bool
) -> PettingZooEnvs:
    """Return the environments of a run that is one of several policies, with the others' runs.

    Raises:
        CheckpointError: another policy's run is missing.
    """
    folder = run.path.resolve()

    def load(name: str) -> ActingPolicy:
        path = folder.parent / name
        if not (path / "config.json").is_file():
            raise CheckpointError(
                f"{run.path} plays with the policy of {path}, which does not exist: keep the runs "
                "of all policies in one directory"
            )
        network, snapshot, _ = RunDirectory.open(path).load_policy(is_trusted=is_trusted)
        return ActingPolicy(network, snapshot)

    policies = run.config["config"]["policies"]
    return make_partnered(spec, num_envs, policies, folder.name, load)
