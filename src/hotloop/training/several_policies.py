"""Several policies that learn at once in the same games, each with a run directory of its own.

    RUN/
      config.json        the training's configuration
      policies/NAME/     a run directory for each policy, as of a single one

Each policy has its own learner, its own fragments and the training loop of a single run. The runs
are generators, as lanes are (`hotloop.training.lanes`). They collect together
(`hotloop.rollouts.joint`), so that every step of a game is computed once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hotloop.base.signals import PendingInterrupt, delayed_interrupt, interrupt_by_default
from hotloop.envs import EnvSpec, VectorEnv, kept_global_generators, seed_global_generators
from hotloop.envs.closing import closing_environments
from hotloop.envs.game_factory import make_views
from hotloop.errors import CheckpointError, ConfigError, RunDirectoryError
from hotloop.rollouts import Environments
from hotloop.rollouts.joint import JointGames
from hotloop.rollouts.state import running_episodes
from hotloop.runs import OnReport, Report, RunDirectory, RunResult
from hotloop.runs.checkpoints import Checkpoints
from hotloop.runs.policies import POLICIES, policy_runs
from hotloop.timing import span
from hotloop.timing.policy_shares import policy_span
from hotloop.training.algorithm import Algorithm
from hotloop.training.assignment import assign
from hotloop.training.checkpoint_state import CheckpointState, CompletedIteration
from hotloop.training.loop import Stages
from hotloop.training.options import (
    OnPolicyOptions,
    RunOptions,
    to_json,
)
from hotloop.training.partners import make_partnered
from hotloop.training.policy_configs import policy_configs
from hotloop.training.process import TrainingProcess
from hotloop.training.resume import (
    OpenedRun,
    ResumedRun,
    check_changes,
    continues_elsewhere,
    finished_checkpoint,
    finished_error,
)
from hotloop.training.run import create_directory, run_training
from hotloop.training.run_updates import Run, UpdateRequest, run_updates
from hotloop.training.sources import Makers, training_spec
from hotloop.types import Fragment, RunningEpisode


def train_policies(
    algorithm: Algorithm[Any],
    config: OnPolicyOptions,
    *,
    env: str | Callable[..., Any] | None = None,
    on_report: OnReport | None = None,
    on_end: Callable[[RunResult | None], None] | None = None,
    resume_from: str | Path | None = None,
) -> dict[str, RunResult]:
    """Train several policies at once in a PettingZoo environment.

    Args:
        algorithm: an on-policy algorithm, of all policies.
        config: the configuration of all policies. `num_envs` and `total_timesteps` are those of all
            agents together, of which each policy has the share of its agents.
        env: see `Algorithm.train`.
        on_report: see `Algorithm.train`. The returns are those of the first policy.
        on_end: called with the first policy's result, whose directory is that of all.
        resume_from: the directory of an earlier training of several policies, to resume.

    Returns:
        The result of each policy by name.

    Raises:
        ConfigError: `policies` do not fit the environment's agents, or the training is finished.
        CheckpointError: the policies have no checkpoints of the same iteration.
        KeyboardInterrupt: after the last checkpoint of each policy was written.
    """
    if not isinstance(config, OnPolicyOptions):
        raise ConfigError(
            f"several policies need an on-policy algorithm, got {algorithm.name}: train ppo"
        )
    if config.policies is None:
        raise ConfigError("`policies` must name the policies to train, got None")
    environment = config.env_id if env is None else env
    with contextlib.ExitStack() as exits:
        guard = exits.enter_context(interrupt_by_default())
        exits.enter_context(kept_global_generators())
        envs_to_close = exits.enter_context(closing_environments())
        spec = training_spec(config, environment)
        seed_global_generators(config.seed, "learner")
        views = make_views(spec, config.num_envs, partial(assign, config.policies))
        envs_to_close.append(next(iter(views.values())))
        shares = {name: len(view.agents) for name, view in views.items()}
        own_configs = policy_configs(config, shares)
        folder = _open_folder(algorithm, config, spec.name, resume_from)
        exits.callback(folder.close)
        process = TrainingProcess(config, exits, is_resumed=resume_from is not None)
        process.add(folder)
        starts = {} if resume_from is None else _common_checkpoints(folder.path, shares)
        joint, leader = JointGames(views), next(iter(views))
        joint.resume({name: _running_episodes(path) for name, path in starts.items()})
        has_stopped = False

        def on_first_start(stages: Stages) -> Iterable[UpdateRequest]:
            if resume_from is not None:  # this run has just stored the changed options, too
                folder.replace_config(to_json(config))
            return wait(stages)

        def on_first_report(report: Report) -> bool | None:
            guard.check()
            share = shares[leader] / sum(shares.values())
            whole = dataclasses.replace(
                report,
                run_dir=folder.path,
                timesteps=round(report.timesteps / share),
                total_timesteps=config.total_timesteps,
            )
            return None if on_report is None else on_report(whole)

        def on_first_end(result: RunResult | None) -> None:
            nonlocal has_stopped
            has_stopped = True

        runs = {
            name: run_training(
                algorithm,
                dataclasses.replace(own_config, run_dir=str(folder.path / POLICIES / name)),
                environment,
                on_first_report if name == leader else lambda _: has_stopped,
                on_first_end if name == leader else None,
                starts.get(name),
                envs_to_close=envs_to_close,
                process=process,
                makers=_makers(
                    joint, name, config.policies, on_first_start if name == leader else wait
                ),
            )
            for name, own_config in own_configs.items()
        }
        try:
            results = _drive(runs)
        except BaseException:
            if on_end is not None:
                with contextlib.suppress(Exception):
                    on_end(None)
            raise
        if on_end is not None:
            timesteps = sum(result.timesteps for result in results.values())
            result = dataclasses.replace(results[leader], run_dir=folder.path, timesteps=timesteps)
            on_end(result)
    return results


class StagesInStep:
    """The stages of one of several runs, which publish and complete before the next collection.

    Its loop would do so afterwards, when another run has collected for all already.
    """

    def __init__(self, stages: Stages) -> None:
        self.learner, self.policy, self.rollout = stages.learner, stages.policy, stages.rollout
        self.interrupts, self.store_span = stages.interrupts, stages.store_span
        self._stages = stages
        self._iteration: CompletedIteration | None = None

    def restore(self, resumed: ResumedRun) -> tuple[list[int], list[str]]:
        """See `Stages`."""
        return self._stages.restore(resumed)

    def rounds(self, interrupt: PendingInterrupt) -> Iterator[None]:
        """See `Stages`."""
        return self._stages.rounds(interrupt)

    def collect(self) -> Sequence[Fragment]:
        """See `Stages`."""
        return self._stages.collect()

    def store(self, fragments: Sequence[Fragment]) -> None:
        """See `Stages`."""
        self._stages.store(fragments)

    def update_requests(self) -> Iterator[UpdateRequest]:
        """See `Stages`. The last request waits until all runs have come so far."""
        yield from self._stages.update_requests()
        self._stages.publish()
        self._iteration = self._stages.complete()
        yield from wait(self)

    def publish(self) -> None:
        """See `Stages`. Done already."""

    def complete(self) -> CompletedIteration:
        """See `Stages`."""
        assert self._iteration is not None
        return self._iteration


def wait(stages: Stages) -> Iterable[UpdateRequest]:
    """Yield a request without updates, with which the run waits for the others."""
    yield UpdateRequest(stages.learner, (None for _ in ()), spans=("publish",))


def _drive(runs: Mapping[str, Run[RunResult]]) -> dict[str, RunResult]:
    """Advance all runs from one request to the next, and return their results.

    However they end, all have reported the same iteration.
    """
    results: dict[str, RunResult] = {}
    active = dict(runs)
    waiting: list[str] = []  # runs that the current round has not advanced yet
    try:
        while active:
            requests: list[tuple[str, UpdateRequest]] = []
            waiting = list(active)
            with delayed_interrupt():
                while waiting:
                    name = waiting.pop(0)
                    try:
                        with span(policy_span(name)):
                            requests.append((name, next(active[name])))
                    except BaseException as error:
                        del active[name]
                        if not isinstance(error, StopIteration):
                            raise
                        results[name] = error.value
            for name, request in requests:
                with span(policy_span(name)):
                    run_updates(request)
    except BaseException as error:  # one run's failure, or a signal, ends all
        for name, run in active.items():
            with contextlib.suppress(BaseException):
                if name in waiting:
                    next(run)  # reports its iteration, and fails to collect
                run.throw(error)
        raise
    return results


def _makers(
    joint: JointGames,
    name: str,
    policies: str | Callable[[Any], str],
    start: Callable[[Stages], Iterable[UpdateRequest]],
) -> Makers:
    """Return the functions that make the environments of one policy."""

    def make(config: RunOptions, spec: EnvSpec, run: OpenedRun) -> Environments:
        return joint.environments(name)

    def make_evaluation(spec: EnvSpec, num_envs: int | None = None) -> VectorEnv:
        return make_partnered(spec, num_envs, policies, name, joint.policies.__getitem__)

    return Makers(
        training=make,
        evaluation=make_evaluation,
        film=make_evaluation,
        adapt=StagesInStep,
        start=start,
    )


def _open_folder(
    algorithm: Algorithm[Any], config: OnPolicyOptions, env: str, resume_from: str | Path | None
) -> RunDirectory:
    """Create the directory of the training, or reopen and lock it."""
    if resume_from is None:
        return create_directory(algorithm, config, env)
    folder = RunDirectory.open(resume_from)
    folder.check_signature()
    check_whole(folder.path)
    check_changes(config, folder)
    if continues_elsewhere(config, folder):
        raise ConfigError(
            f"several policies can only be resumed in their own directory, {folder.path}, got "
            f"`run_dir` '{config.run_dir}': leave it out"
        )
    if (steps := finished_steps(folder, config)) is not None:
        raise finished_error(folder.path, steps, config)
    folder.lock()
    return folder


def check_whole(path: Path) -> None:
    """Check that a directory is that of all policies, not of one of them.

    Raises:
        RunDirectoryError: it has no policies.
    """
    parent = path.resolve().parent
    is_policy = parent.name == POLICIES and (parent.parent / "config.json").exists()
    if not is_policy and RunDirectory.open(path).config["config"].get("policies") is not None:
        return  # also if a kill came before the first policy's run
    advice = f"resume {parent.parent}" if is_policy else "start a new training"
    raise RunDirectoryError(
        f"several policies are resumed with the directory of all, got {path}: {advice}"
    )


def finished_steps(folder: RunDirectory, config: OnPolicyOptions) -> int | None:
    """Return the steps of all policies if each has its share of `total_timesteps`, else None.

    Raises:
        CheckpointError: a policy's last checkpoint is damaged.
    """
    steps = 0
    for path in policy_runs(folder.path):
        run = RunDirectory.open(path)
        num_envs = run.config["config"]["num_envs"]
        total = -(-config.total_timesteps * num_envs // config.num_envs)  # rounded up
        last = finished_checkpoint(run, dataclasses.replace(config, total_timesteps=total))
        if last is None:
            return None
        steps += last.state["timesteps"]
    return steps or None


def _common_checkpoints(folder: Path, shares: Mapping[str, int]) -> dict[str, Path]:
    """Return each policy's newest checkpoint of which all others have one too.

    A policy without a checkpoint begins again in its run directory. If it has none, which a kill
    may have prevented, it is left out.

    Raises:
        CheckpointError: there is no common checkpoint.
    """
    runs = {name: folder / POLICIES / name for name in shares}
    steps: dict[str, set[int]] = {}
    for name, share in shares.items():
        names = (path.name for path in (runs[name] / "checkpoints").glob("step-*"))
        steps[name] = {int(text.removeprefix("step-")) // share for text in names}
    common = set.intersection(*steps.values())
    if common:
        newest = max(common)
        return {
            name: run / "checkpoints" / f"step-{newest * shares[name]:012}"
            for name, run in runs.items()
        }
    counts = [len(found) for found in steps.values()]
    if any(counts) and (all(counts) or max(counts) > 1):
        raise CheckpointError(
            f"the policies in {folder / POLICIES} have no checkpoints of the same iteration: "
            "start a new training"
        )
    for run in runs.values():
        Checkpoints(run / "checkpoints").clear()  # a kill came between the first ones
        if not (run / "config.json").exists():
            shutil.rmtree(run, ignore_errors=True)
    return {name: run for name, run in runs.items() if run.exists()}


def _running_episodes(path: Path) -> list[RunningEpisode]:
    """Return the running episodes of a checkpoint, none of a run that has no checkpoint."""
    if path.parent.name != "checkpoints":
        return []
    checkpoint = Checkpoints(path.parent).load(path.name)
    position = CheckpointState.from_json(checkpoint.state).rollout
    return running_episodes(checkpoint.arrays(), position.episodes)
