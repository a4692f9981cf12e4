"""What surrounds an algorithm's loop: its directory, its environments, and what is told and kept.

An algorithm's `train` opens a `Session`, asks it where to begin, and tells it after each iteration
what there is: checkpoints, evaluations, metrics, trackers and reports are then made here, the same
way for all of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, cast

import numpy as np

from hotloop import timing
from hotloop.envs import ActionSpec, ObsSpec, VectorEnv, environment_name, make_vec
from hotloop.errors import CheckpointError, ConfigError, NonFiniteError, NonFiniteUpdate
from hotloop.learner import Execution, torch_threads
from hotloop.policies import ActingPolicy, Network
from hotloop.rollouts import CollectionOptions, Environments, InlineEnvironments, Rollout, Schedule
from hotloop.rollouts.accounting import Accounting
from hotloop.rollouts.evaluation import evaluate
from hotloop.rollouts.video import check_filmable, record_video
from hotloop.runs import (
    Checkpoint,
    Evaluation,
    OnReport,
    Progress,
    Result,
    RunConfig,
    RunDirectory,
    changed_fields,
    delayed_interrupt,
)
from hotloop.runs.tracking import Trackers, open_trackers
from hotloop.timing import span
from hotloop.types import Episode

AnyConfig = TypeVar("AnyConfig", bound=RunConfig)


class Specs(Protocol):
    """Whatever has spaces."""

    @property
    def obs_spec(self) -> ObsSpec:
        """Shape, dtype and layout of one observation."""
        ...

    @property
    def action_spec(self) -> ActionSpec:
        """Kind, shape and bounds of one action."""
        ...


@dataclass(frozen=True, kw_only=True)
class Collecting:
    """How an algorithm collects: what `workers` 'auto' goes by.

    Attributes:
        plan: as it is configured.
        make_network: what acts, for environments with these spaces.
        uneven: the schedule that the algorithm can learn from, and that waits for no worker.
    """

    plan: CollectionOptions
    make_network: Callable[[Specs], Network]
    uneven: Schedule


class Session:
    """One training, from its directory to its result. Made by `open_session`.

    Attributes:
        config: the algorithm's configuration; what it left to be chosen is.
        run: the run directory.
        envs: the training environments.
        resumed_from: the checkpoint to go on from; None for a run that begins.
    """

    def __init__(
        self,
        config: RunConfig,
        run: RunDirectory,
        *,
        environment: str | Callable[..., Any],
        is_resumed: bool,
        resumed_from: Checkpoint | None,
        on_report: OnReport | None,
        collecting: Callable[[Any], Collecting],
    ) -> None:
        self.config = config
        self.run = run
        self.resumed_from = resumed_from
        self.envs: Environments
        self._environment = environment
        self._is_resumed = is_resumed
        self._on_report = on_report
        self._collecting_of = collecting
        self._network: Network
        self._rollout: Rollout | None = None
        self._num_dropped = 0
        self._eval_envs: VectorEnv | None = None
        self._trackers: Trackers | None = None
        # What `workers` 'auto' came to, here or when the run was begun.
        self._choice: dict[str, Any] | None = None
        self._status: Literal["finished", "stopped", "failed"] = "failed"
        # Where the run stands: its last whole iteration; None before the first.
        self._latest = resumed_from
        self._saved_at = self._at("timesteps")
        # The best evaluation so far: its step and its mean return.
        self._best: dict[str, Any] | None = None
        if resumed_from is not None:
            self._best = resumed_from.state["session"]["best"]
            if self._best is not None and not run.checkpoints.has(self._best["timesteps"]):
                self._best = None  # it gave way to a better one, after which this run goes back

    # --- what an algorithm calls ------------------------------------------------------------------

    def chosen(self, config: AnyConfig) -> AnyConfig:
        """The configuration that the session was opened with; what it left to be chosen is."""
        assert type(self.config) is type(config)
        return cast("AnyConfig", self.config)

    def check_network(self, network: Network) -> None:
        """Say which network is trained.

        Raises:
            CheckpointError: the checkpoint to go on from is of another one.
        """
        self._network = network
        if self.resumed_from is None:
            return
        theirs = self.resumed_from.network
        for what, value in network.to_json().items():
            if value != theirs.get(what):
                raise self._other_network(what, theirs.get(what), value)
        params = self.resumed_from.snapshot.params
        stored = {name: array.shape for name, array in params.items()}
        shapes = network.parameter_shapes()
        for name in sorted({*stored, *shapes}):
            if stored.get(name) != shapes.get(name):
                raise self._other_network(f"parameter `{name}`", stored.get(name), shapes.get(name))

    def _other_network(self, what: str, theirs: Any, ours: Any) -> CheckpointError:
        return CheckpointError(
            f"{self.run.path}: the checkpoint's {what} is {theirs}, the run's would be {ours}: "
            "resume with the environment and the network that it was trained with, or train anew"
        )

    def rollout(self, policy: ActingPolicy, plan: CollectionOptions) -> Rollout:
        """Begin to collect with the training environments."""
        self._rollout = self.envs.rollout(policy, plan)
        return self._rollout

    def begin(
        self, *, execution: str, restarted_envs: Sequence[int] = (), notes: Sequence[str] = ()
    ) -> bool:
        """The first report; True asks to stop.

        From here on the checkpoints and metrics of what is not gone on from are gone.

        Args:
            execution: how the updates run, and why so.
            restarted_envs: environments whose episodes could not be brought back.
            notes: what else is not as it was.

        Raises:
            ConfigError, MissingExtraError: a tracker can't be opened.
        """
        checkpoint = self.resumed_from
        resumed, timesteps = "", self._at("timesteps")
        old_total = self.run.config["config"]["total_timesteps"]
        if self._is_resumed:
            with delayed_interrupt():
                self._cut_back()
        if self.config.track:
            with span("open_trackers"):
                self._trackers = open_trackers(
                    self.config.track, self.run, resumed=self._is_resumed
                )
        if checkpoint is not None:
            resumed = f"resumed at {timesteps:,} steps"
            if restarted_envs:
                resumed += (
                    f"; the episodes of {len(restarted_envs)} of {self.envs.num_envs} environments "
                    "can't be replayed, and new ones began"
                )
            for note in notes:
                resumed += f"; {note}"
            if old_total != self.config.total_timesteps:
                resumed += (
                    f"; the run is {self.config.total_timesteps:,} steps long now and not "
                    f"{old_total:,}, and so is all that is annealed over it"
                )
        self._progress = Progress(
            self.run.path,
            self.config.total_timesteps,
            self._on_report,
            execution=execution,
            resumed=resumed,
            workers=self._describe_workers(),
        )
        if checkpoint is not None:
            self._progress.load(checkpoint.state["session"]["progress"])
        return self._progress.report(timesteps, {})

    def end_iteration(
        self, checkpoint: Checkpoint, episodes: Sequence[Episode], metrics: Mapping[str, float]
    ) -> bool:
        """Evaluate, log, save, report, as far as they are due; True asks to stop.

        Args:
            checkpoint: where the run stands, in arrays that later iterations leave alone; `state`
                has `timesteps`, `iteration`, and of `rollout` what `RolloutState.to_json` gives.
            episodes: that ended in this iteration.
            metrics: of its updates.
        """
        config, progress = self.config, self._progress
        timesteps = checkpoint.state["timesteps"]
        before = self._at("timesteps")
        progress.add(episodes)
        line = {
            "iteration": checkpoint.state["iteration"],
            "timesteps": timesteps,
            "elapsed_s": round(progress.elapsed_s, 6),
            "episode_returns": [e.undiscounted_return for e in episodes],
            "episode_lengths": [e.length for e in episodes],
            **metrics,
            **self._accounts(),
        }
        evaluation = None
        every, total = config.eval_interval, config.total_timesteps
        if every and (timesteps // every > before // every or timesteps >= total):
            try:
                with span("evaluation"):
                    evaluation = self._evaluate(checkpoint)
            except Exception:  # what was learned is not the evaluation's to lose
                self._keep(checkpoint, line)
                raise
            line["evaluation"] = evaluation.to_json()
        self._keep(checkpoint, line)
        interval = config.checkpoint_interval
        if timesteps // interval > before // interval or (evaluation and evaluation.is_best):
            self._save()
        with span("report"):
            return progress.report(timesteps, dict(metrics), evaluation)

    def _keep(self, checkpoint: Checkpoint, line: dict[str, Any]) -> None:
        """Log an iteration, which from here on is what is saved if the run ends."""
        with span("report"), delayed_interrupt():
            self.run.log(line)
            session = {"best": self._best, "progress": self._progress.to_json()}
            self._latest = replace(checkpoint, state={**checkpoint.state, "session": session})
            if self._trackers is not None:
                self._trackers.log(checkpoint.state["timesteps"], line)

    def result(
        self, policy: ActingPolicy, executions: Sequence[Execution], *, is_stopped: bool
    ) -> Result:
        """The training has ended; its updates ran so."""
        self._status = "stopped" if is_stopped else "finished"
        assert self._rollout is not None
        return Result(
            policy=policy,
            run_dir=self.run.path,
            timesteps=self._at("timesteps"),
            elapsed_s=self._progress.elapsed_s,
            mean_return=self._progress.mean_return,
            status=self._status,
            execution="\n".join(dict.fromkeys(one.summary() for one in executions)),
            compile_s=sum(one.compile_s for one in executions),
            accounting=self._rollout.accounting().to_json(),
        )

    # --- what happens around the loop -------------------------------------------------------------

    def _at(self, counter: str) -> int:
        """How far the run has come, in `timesteps` or by `iteration`."""
        return 0 if self._latest is None else self._latest.state[counter]

    def _cut_back(self) -> None:
        """Make the checkpoint that is gone on from the last thing that happened."""
        checkpoint, checkpoints = self.resumed_from, self.run.checkpoints
        if checkpoint is None:  # it was killed before it saved one
            checkpoints.clear()
            self.run.resume(self.config, timesteps=0, iteration=0)
        else:
            state = checkpoint.state
            # In this order, so that nothing is lost by what fails or kills in between.
            best = None if self._best is None else self._best["timesteps"]
            checkpoints.rewind(checkpoint, best=best)
            self.run.resume(self.config, timesteps=state["timesteps"], iteration=state["iteration"])
            checkpoints.remove_later(checkpoint)

    def _evaluate(self, checkpoint: Checkpoint) -> Evaluation:
        assert self._eval_envs is not None
        policy = ActingPolicy(self._network, checkpoint.snapshot)
        timesteps = checkpoint.state["timesteps"]
        episodes = evaluate(self._eval_envs, policy, num_episodes=self.config.eval_episodes)
        returns = [episode.undiscounted_return for episode in episodes]
        mean_return = float(np.mean(returns))
        is_best = self._best is None or mean_return > self._best["mean_return"]
        if is_best:
            self._best = {"timesteps": timesteps, "mean_return": mean_return}
        if self.config.eval_videos:
            record_video(
                self._environment,
                policy,
                self.run.path / "videos" / f"step-{timesteps:012}.mp4",
                env_kwargs=self.config.env_kwargs,
                seed=self.config.seed,
            )
        return Evaluation(
            timesteps=timesteps,
            returns=returns,
            lengths=[episode.length for episode in episodes],
            is_best=is_best,
        )

    def _save(self) -> None:
        latest = self._latest
        assert latest is not None
        is_best = self._best is not None and self._best["timesteps"] == latest.state["timesteps"]
        with span("save"), delayed_interrupt():
            # The best one first: if the process is killed in between, what the last one says is
            # the best is still there.
            self.run.checkpoints.save(
                latest,
                names=("best", "last") if is_best else ("last",),
                keep=self.config.keep_checkpoints,
            )
            self._saved_at = latest.state["timesteps"]

    def _open_parts(self, exits: contextlib.ExitStack) -> None:
        config, environment, checkpoint = self.config, self._environment, self.resumed_from
        exits.callback(timing.stop)
        timing.start(self.run.path / "timing", component="learner")
        exits.callback(self._keep_accounting)
        with span("make_envs"):
            if config.workers == "auto":
                config = self.config = self._choose()
            self._choice = self.run.choice
            self.envs = self._make_environments(_next_episode(checkpoint))
            exits.callback(self.envs.close)
            if config.eval_interval is not None:
                self._eval_envs = make_vec(
                    environment,
                    config.num_envs,
                    seed=config.seed,
                    env_kwargs=config.env_kwargs,
                    stream="evaluation",
                )
                exits.callback(self._eval_envs.close)
            if config.eval_videos:
                check_filmable(environment, env_kwargs=config.env_kwargs)

    def _make_environments(self, first_episode: int) -> Environments:
        """Those to train in: here, or in workers."""
        config = self.config
        assert config.workers != "auto"
        num_groups = config.workers or 1
        num_envs = config.num_envs // num_groups
        stagger = config.num_envs if config.workers else 0
        if config.has_workers:
            from hotloop.rollouts.pool import WorkerPool

            return WorkerPool(
                self._environment,
                num_workers=num_groups,
                envs_per_worker=num_envs,
                seed=config.seed,
                env_kwargs=config.env_kwargs,
                first_episode=first_episode,
                stagger=stagger,
                timing_dir=self.run.path / "timing",
                step_timeout_s=config.step_timeout_s,
                max_failures=config.max_failures,
            )
        groups: list[VectorEnv] = []
        try:
            for group in range(num_groups):
                groups.append(
                    make_vec(
                        self._environment,
                        num_envs,
                        seed=config.seed,
                        env_kwargs=config.env_kwargs,
                        first_env=group * num_envs,
                        first_episode=first_episode,
                        stagger=stagger,
                    )
                )
        except BaseException:
            InlineEnvironments(groups).close()
            raise
        return InlineEnvironments(groups)

    def _choose(self) -> RunConfig:
        """The configuration with what `workers` 'auto' comes to, which is written down."""
        from hotloop.rollouts.forecast import to_json
        from hotloop.rollouts.probe import probe

        config = self.config
        collecting = self._collecting_of(config)
        if config.backend == "inline":
            options: dict[str, Any] = {"workers": 0}
            about: dict[str, Any] = {"summary": "none: `backend` is 'inline'"}
        else:
            choice = probe(
                self._environment,
                collecting.make_network,
                collecting.plan,
                num_envs=config.num_envs,
                num_left=config.total_timesteps,
                uneven=collecting.uneven,
                env_kwargs=config.env_kwargs,
            )
            options = {"workers": choice.taken.workers, "schedule": choice.taken.schedule}
            if choice.fragment_steps is not None:
                options["fragment_steps"] = choice.fragment_steps
            about = to_json(choice)
        chosen = dataclasses.replace(config, **options)
        self.run.keep_choice(options, about)
        return chosen

    @property
    def _plan(self) -> CollectionOptions:
        return self._collecting_of(self.config).plan

    def _describe_workers(self) -> str:
        """What steps the environments; nothing where nobody asked."""
        choice, config, plan = self._choice, self.config, self._plan
        if choice is not None:
            return choice["summary"]
        if not config.workers:
            return ""
        each = config.num_envs // config.num_groups
        where = "" if config.has_workers else ", inline"
        overlap = ", overlapping with learning" if plan.overlap else ""
        return f"{config.workers} × {each} environments, {plan.schedule}{overlap}{where}"

    def _accounts(self) -> dict[str, float]:
        """What a line of metrics says of collecting, where there is anything to say."""
        assert self._rollout is not None
        plan = self._plan
        accounting = self._rollout.accounting(with_workers=False)
        line: dict[str, float] = {}
        dropped = sum(accounting.dropped.values())
        if dropped > self._num_dropped:
            line["dropped"], self._num_dropped = dropped - self._num_dropped, dropped
        if plan.schedule != "barrier" or plan.overlap:
            line["policy_age_mean"], line["policy_age_max"] = accounting.policy_age
        return line

    def _keep_accounting(self) -> None:
        """What became of every transition, and what each worker did: `accounting.json`."""
        choice = self._choice
        if self._rollout is None or not (self.config.workers or choice):
            return
        accounting = self._rollout.accounting()
        told = {"collected_per_s": self._collected_per_s(accounting)}
        if choice is not None and "taken" in choice:
            told["forecast_per_s"] = choice["taken"]["steps_per_s"]
        self.run.write_json("accounting.json", {**accounting.to_json(), **told})

    def _collected_per_s(self, accounting: Accounting) -> float | None:
        """Transitions for each second of collecting: of the learner's, or, where workers collect
        while it learns, of theirs."""
        plan = self._plan
        if accounting.workers and (plan.overlap or plan.schedule == "async"):
            return sum(worker.active_steps_per_s for worker in accounting.workers)
        try:
            collect = timing.current().tree().find("collect")
        except KeyError:
            return None
        return accounting.trained / (collect.total_ns / 1e9) if collect.total_ns else None

    def _explain(self, error: NonFiniteUpdate) -> NonFiniteError:
        """Keep what the update learned from, and say which it was."""
        iteration = self._at("iteration") + 1
        where = "its batch was overwritten since"
        if error.batch:
            where = f"its batch is kept in {self.run.save_arrays('nonfinite_batch', error.batch)}"
        return NonFiniteError(
            f"losses and parameters must be finite, but update {error.update} of iteration "
            f"{iteration} gave NaN or infinity in {', '.join(error.names)}: lower "
            f"the learning rate, and check the scale of the rewards; {where}"
        )

    def _close(self) -> None:
        """Save the last whole iteration, wherever the loop was interrupted."""
        try:
            if self._latest is not None and self._saved_at != self._latest.state["timesteps"]:
                self._save()
        finally:
            if self._trackers is not None:
                self._trackers.close(self._status)


@contextmanager
def open_session(
    config: AnyConfig,
    *,
    algorithm: str,
    env: str | Callable[..., Any] | None,
    network_name: str | None,
    on_report: OnReport | None,
    resume_from: str | Path | None,
    collecting: Callable[[AnyConfig], Collecting],
) -> Iterator[Session]:
    """A training's surroundings; whatever ends the body, what was learned is kept.

    Args:
        config: the algorithm's configuration.
        algorithm: its name.
        env: used instead of `config.env_id`.
        network_name: of the user's own network; None for one of ours.
        on_report: is told of each iteration.
        resume_from: a run directory, or a checkpoint in one, to go on from.
        collecting: how the algorithm collects with such a configuration.

    Raises:
        ConfigError, UnknownNameError, SpaceError, MissingExtraError: before anything starts.
        CheckpointError: the checkpoint to go on from is damaged or of another run.
        RunDirectoryError: the run directory exists, is missing, is in use, or can't be written.
    """
    environment = config.env_id if env is None else env
    name = environment_name(environment)
    run, checkpoint = None, None
    is_new = resume_from is None
    exits = contextlib.ExitStack()
    try:
        with delayed_interrupt():  # from here on there is something to tidy up
            if resume_from is None:
                run = RunDirectory.create(
                    config.run_dir,
                    runs_dir=config.runs_dir,
                    env_id=name,
                    algorithm=algorithm,
                    seed=config.seed,
                    config=config,
                    network=network_name,
                )
            else:
                run, config, checkpoint = _reopen(
                    config, Path(resume_from), algorithm=algorithm, env=name
                )
        session = Session(
            config,
            run,
            environment=environment,
            is_resumed=not is_new,
            resumed_from=checkpoint,
            on_report=on_report,
            collecting=collecting,
        )
        exits.enter_context(torch_threads(config.torch_threads))
        session._open_parts(exits)
        try:
            yield session
        except NonFiniteUpdate as error:
            raise session._explain(error) from None
        except KeyboardInterrupt:
            session._status = "stopped"
            raise
        finally:
            session._close()
    except BaseException as error:
        with contextlib.suppress(Exception):  # what went wrong first is what should be seen
            exits.close()
        if run is not None:
            run.close()
            is_empty = not run.has_metrics and not isinstance(error, NonFiniteError)
            if is_new and is_empty:  # it ended before its first iteration did
                run.remove()
        raise
    run.close()
    try:
        exits.close()
    except Exception as error:  # the run is done, and its result should not be lost
        warnings.warn(f"closing the environments raised {error!r}", stacklevel=3)


def _next_episode(checkpoint: Checkpoint | None) -> int:
    """A number that no environment's episode has had yet."""
    episodes = [] if checkpoint is None else checkpoint.state["rollout"]["episodes"]
    return 1 + max((episode for episode, _ in episodes), default=-1)


def _reopen(
    config: AnyConfig, path: Path, *, algorithm: str, env: str
) -> tuple[RunDirectory, AnyConfig, Checkpoint | None]:
    """A run, the configuration with what was chosen for it, and its checkpoint to go on from; None
    where it was killed before it saved one."""
    folder, name = path, "last"
    if path.parent.name == "checkpoints" and not (path / "config.json").is_file():
        folder, name = path.parent.parent, path.name
    run = RunDirectory.open(folder)
    stored = run.config
    if stored["algorithm"] != algorithm:
        raise ConfigError(
            f"{folder} is a run of {stored['algorithm']}, got {algorithm}: resume it with "
            f"`hotloop resume {folder}`"
        )
    if stored["env_id"] != env:
        raise CheckpointError(
            f"{folder} is a run on '{stored['env_id']}', got '{env}': resume it with that "
            "environment, or train anew"
        )
    choice = run.choice
    if choice is not None:
        asked = choice["asked"]
        if all(getattr(config, name) == value for name, value in asked.items()):
            config = replace(config, **choice["chosen"])
    changed = changed_fields(config, stored["config"])
    if changed:
        raise ConfigError(
            f"{folder} can only be resumed with the configuration that it was started with, got "
            f"{'; '.join(changed)}: leave these as they were, or train anew"
        )
    run.lock()
    try:
        checkpoint = None
        if name != "last" or run.checkpoints.names():  # else it was killed before it saved one
            checkpoint = run.checkpoints.load(name)
            timesteps = checkpoint.state["timesteps"]
            if timesteps >= config.total_timesteps:
                raise ConfigError(
                    f"{folder} is finished: it has {timesteps:,} of "
                    f"{config.total_timesteps:,} steps; ask for more with a larger "
                    "`total_timesteps`, or train anew"
                )
    except BaseException:
        run.close()
        raise
    return run, config, checkpoint
