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

from hotloop.base.signals import (
    Interrupts,
    PendingInterrupt,
    delayed_interrupt,
    immediate_interrupt,
    interrupt_by_default,
)
from hotloop.envs import EnvSpec, VectorEnv, kept_global_generators, seed_global_generators
from hotloop.envs.closing import closing_environments
from hotloop.envs.game_factory import make_views
from hotloop.envs.pettingzoo_envs import PettingZooEnvs
from hotloop.errors import CheckpointError, ConfigError, RunDirectoryError
from hotloop.rollouts import Environments, RolloutPosition
from hotloop.rollouts.joint import JointGames
from hotloop.rollouts.joint_workers import JointWorkers
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
    RunOptions,
    to_json,
)
from hotloop.training.partners import make_partnered
from hotloop.training.policy_configs import (
    PoliciesConfig,
    policy_algorithms,
    policy_configs,
)
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
from hotloop.training.sources import Makers, make_workers, training_spec
from hotloop.types import Array, Fragment


def train_policies(
    algorithm: Algorithm[Any],
    config: PoliciesConfig,
    *,
    env: str | Callable[..., Any] | None = None,
    on_report: OnReport | None = None,
    on_end: Callable[[RunResult | None], None] | None = None,
    resume_from: str | Path | None = None,
) -> dict[str, RunResult]:
    """Train several policies at once in a PettingZoo environment.

    Args:
        algorithm: the algorithm of the policies for which `config.policies` names no other.
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
    if config.policies is None:
        raise ConfigError("`policies` must name the policies to train, got None")
    environment = config.env_id if env is None else env
    with contextlib.ExitStack() as exits:
        guard = exits.enter_context(interrupt_by_default())
        exits.enter_context(kept_global_generators())
        envs_to_close = exits.enter_context(closing_environments())

        # Make one game to find each policy's agents, and check the options.
        spec = training_spec(config, environment)
        seed_global_generators(config.seed, "learner")
        with closing_environments() as first_game:
            views = make_views(spec, None, partial(assign, config.policies))
            first_game.append(next(iter(views.values())))
        shares = {name: len(view.agents) for name, view in views.items()}
        _check_num_envs(config, sum(shares.values()), spec.name)
        algorithms = policy_algorithms(algorithm, config, shares)
        own_configs = policy_configs(config, algorithms, shares)

        # Open the directory, and make the games.
        folder = _open_folder(algorithm, config, spec.name, resume_from)

        def close_folder(_kind: Any, error: BaseException | None, _trace: Any) -> None:
            is_empty = resume_from is None and not policy_runs(folder.path)
            folder.remove() if error is not None and is_empty else folder.close()

        exits.push(close_folder)
        process = TrainingProcess(config, exits, is_resumed=resume_from is not None)
        process.add(folder)
        starts = {} if resume_from is None else _common_checkpoints(folder.path, shares)
        leader, has_stopped = next(iter(views)), False
        joint = _make_games(config, spec, views, folder.path, starts, envs_to_close)
        if isinstance(joint, JointWorkers):
            exits.callback(joint.workers.close)

        # Make the runs. The first one reports for all, and all stop with it.
        def on_first_wait(stages: Stages) -> Iterable[UpdateRequest]:
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
                algorithms[name],
                dataclasses.replace(own_config, run_dir=str(folder.path / POLICIES / name)),
                environment,
                on_first_report if name == leader else lambda _: has_stopped,
                on_first_end if name == leader else None,
                starts.get(name),
                envs_to_close=envs_to_close,
                process=process,
                makers=_makers(
                    joint, name, config.policies, on_first_wait if name == leader else wait
                ),
            )
            for name, own_config in own_configs.items()
        }

        # Train.
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
    """The stages of one of several runs that collect together.

    Publish and complete an iteration with its updates, before any run collects again. The training
    loop of a single run does so later, but a collection by another run is a collection by all.
    """

    def __init__(self, stages: Stages) -> None:
        self.learner, self.policy, self.rollout = stages.learner, stages.policy, stages.rollout
        self.interrupts: Interrupts = immediate_interrupt  # an unfinished iteration is lost
        self.store_span = stages.store_span
        self._stages = stages
        self._rounds: Iterator[None] = iter(())
        self._iteration: CompletedIteration | None = None

    def restore(self, resumed: ResumedRun) -> tuple[list[int], list[str]]:
        """See `Stages`."""
        return self._stages.restore(resumed)

    def rounds(self, interrupt: PendingInterrupt) -> Iterator[None]:
        """See `Stages`."""
        self._rounds, self._iteration = self._stages.rounds(interrupt), None
        next(self._rounds)
        while self._iteration is None:
            yield

    def collect(self) -> Sequence[Fragment]:
        """See `Stages`."""
        return self._stages.collect()

    def store(self, fragments: Sequence[Fragment]) -> None:
        """See `Stages`."""
        self._stages.store(fragments)

    def update_requests(self) -> Iterator[UpdateRequest]:
        """See `Stages`. The last request waits until all runs have reached this point."""
        yield from self._stages.update_requests()
        self._stages.publish()
        if next(self._rounds, _END) is _END:
            self._iteration = self._stages.complete()
        yield from wait(self)

    def publish(self) -> None:
        """See `Stages`. `update_requests` has done it already."""

    def complete(self) -> CompletedIteration:
        """See `Stages`."""
        assert self._iteration is not None
        return self._iteration


class Waiting(UpdateRequest):
    """A request without updates, at which the run waits until all others have one too."""


_END = object()


def wait(stages: Stages) -> Iterable[UpdateRequest]:
    """Yield the request to wait for the other runs."""
    yield Waiting(stages.learner, (None for _ in ()), spans=("publish",))


def _drive(runs: Mapping[str, Run[RunResult]]) -> dict[str, RunResult]:
    """Advance all runs from one request to the next, and return their results.

    However they end, all have reported the same iteration.
    """
    results: dict[str, RunResult] = {}
    active = dict(runs)
    waiting: set[str] = set()  # runs that wait for the others
    released: list[str] = []  # runs whose wait is over, and that were not advanced since
    try:
        while active:
            # Advance each run that does not wait to its next request.
            requests: list[tuple[str, UpdateRequest]] = []
            if waiting.issuperset(active):
                waiting.clear()
                released = list(active)
            names = [name for name in active if name not in waiting]
            with delayed_interrupt():
                for name in names:
                    if name in released:
                        released.remove(name)
                    try:
                        with span(policy_span(name)):
                            request = next(active[name])
                        requests.append((name, request))
                        if isinstance(request, Waiting):
                            waiting.add(name)
                    except BaseException as error:
                        del active[name]
                        if not isinstance(error, StopIteration):
                            raise
                        results[name] = error.value
            # Run the requested updates.
            for name, request in requests:
                with span(policy_span(name)):
                    run_updates(request)
    except BaseException as error:  # one run's failure, or a signal, ends all
        for name, run in active.items():
            with contextlib.suppress(BaseException):
                if name in released:
                    next(run)  # reports its iteration, and fails to collect
                run.throw(error)
        raise
    return results


def _check_num_envs(config: PoliciesConfig, num_agents: int, env: str) -> None:
    """Raise ConfigError if a worker, or this process, would not have whole games."""
    factor = num_agents * config.num_groups
    if config.total_envs % factor:
        less = config.total_envs // factor * factor
        options = " or ".join(str(x) for x in (less, less + factor) if x)
        workers = f" of each of {config.num_groups} workers" * (config.num_groups > 1)
        raise ConfigError(
            f"{env}: each of its {num_agents} agents is one environment, so that the games"
            f"{workers} are whole if `num_envs` is a multiple of {factor}, got "
            f"{config.total_envs}: set it to {options}"
        )


def _make_games(
    config: PoliciesConfig,
    spec: EnvSpec,
    views: Mapping[str, PettingZooEnvs],
    path: Path,
    starts: Mapping[str, Path],
    envs_to_close: list[Any],
) -> JointGames | JointWorkers:
    """Make the games of a training, in this process or in workers.

    Args:
        config: the configuration of all policies.
        spec: the specification of the games.
        views: the views of one game, for the spaces and agents of each policy.
        path: the directory of the training.
        starts: the checkpoint of each policy to resume.
        envs_to_close: a list that receives the environments of this process.
    """
    agents = {name: view.agents for name, view in views.items()}
    num_envs = config.total_envs // config.num_groups  # of each group or worker
    num_agents = sum(map(len, agents.values()))
    seed_global_generators(config.seed, "learner")
    checkpoints = {name: _rollout_state(start) for name, start in starts.items()}
    if config.has_workers:
        order = next(iter(views.values())).games.agents
        indices = {name: [order.index(x) for x in members] for name, members in agents.items()}
        num_games = config.total_envs // num_agents
        rows = {name: num_games * len(members) for name, members in agents.items()}
        return JointWorkers(make_workers(config, spec, path, indices), rows, views, checkpoints)
    groups: list[dict[str, PettingZooEnvs]] = []
    for group in range(config.num_groups):
        part = dataclasses.replace(spec, first_env=group * num_envs)
        groups.append(make_views(part, num_envs, lambda _: agents))
        envs_to_close.append(next(iter(groups[-1].values())))
    joint = JointGames(groups)
    joint.resume(
        {
            name: running_episodes(arrays, position.episodes)
            for name, (arrays, position) in checkpoints.items()
        }
    )
    return joint


def _makers(
    joint: JointGames | JointWorkers,
    name: str,
    policies: str | Callable[[Any], str],
    wait: Callable[[Stages], Iterable[UpdateRequest]],
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
        wait=wait,
    )


def _open_folder(
    algorithm: Algorithm[Any], config: PoliciesConfig, env: str, resume_from: str | Path | None
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
        raise finished_error(folder.path, steps, config.total_timesteps)
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


def finished_steps(folder: RunDirectory, config: PoliciesConfig) -> int | None:
    """Return the steps of all policies if each has its share of `total_timesteps`, else None.

    Raises:
        CheckpointError: a policy's last checkpoint is damaged.
    """
    steps = 0
    for path in policy_runs(folder.path):
        run = RunDirectory.open(path)
        num_envs = run.config["config"].get("num_envs", 1)
        total = -(-config.total_timesteps * num_envs // config.total_envs)  # rounded up
        last = finished_checkpoint(run, total)
        if last is None:
            return None
        steps += last.state["timesteps"]
    return steps or None


def _common_checkpoints(folder: Path, shares: Mapping[str, int]) -> dict[str, Path]:
    """Return each policy's checkpoint of the newest iteration of which all policies have one.

    If no policy has one, the result is their run directories, in which they begin again. A policy
    whose run directory a kill has prevented is left out.

    Raises:
        CheckpointError: there is no common checkpoint.
    """
    runs = {name: folder / POLICIES / name for name in shares}
    # Of policies at the same iteration, each has collected its share of the same number of steps.
    steps: dict[str, set[int]] = {}
    for name, share in shares.items():
        steps[name] = {count // share for count in Checkpoints(runs[name] / "checkpoints").steps()}
    common = set.intersection(*steps.values())
    if common:
        newest = max(common)
        return {
            name: run / "checkpoints" / f"step-{newest * shares[name]:012}"
            for name, run in runs.items()
        }
    counts = [len(iterations) for iterations in steps.values()]
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


def _rollout_state(path: Path) -> tuple[Mapping[str, Array], RolloutPosition]:
    """Return the rollout's state in a checkpoint. A run directory gives the state of a new run."""
    if path.parent.name != "checkpoints":
        return {}, RolloutPosition()
    checkpoint = Checkpoints(path.parent).load(path.name)
    return checkpoint.arrays(), CheckpointState.from_json(checkpoint.state).rollout
