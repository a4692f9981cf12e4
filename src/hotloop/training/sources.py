"""The environments of a run: in this process, in workers or on the device."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic

import torch

from hotloop.base.cores import available_cores
from hotloop.envs import EnvSpec, VectorEnv, make_vec, seed_global_generators
from hotloop.envs.closing import close_all
from hotloop.envs.device import is_on_device, make_device_vec
from hotloop.errors import ConfigError
from hotloop.learner import Execution, choose, choose_device
from hotloop.rollouts import Environments, InlineEnvironments
from hotloop.rollouts.on_device import DeviceEnvironments
from hotloop.rollouts.planning import inference, probe
from hotloop.rollouts.planning.forecast import CollectionTask, EnvTiming, choose_collection
from hotloop.runs import RunDirectory
from hotloop.timing import span
from hotloop.training.initial_policy import InitialPolicy, open_initial_policy
from hotloop.training.options import (
    AlgorithmOptions,
    AnyConfig,
    MaskOptions,
    RunOptions,
    with_values,
)
from hotloop.training.resume import OpenedRun, ResumedRun

if TYPE_CHECKING:
    from hotloop.training.algorithm import Algorithm
    from hotloop.training.callbacks import Callback
    from hotloop.training.loop import Stages
    from hotloop.training.run_updates import UpdateRequest


@dataclass(frozen=True, kw_only=True)
class Sources(Generic[AnyConfig]):
    """The training environments of a run, and the choices on which they depend.

    Attributes:
        config: the configuration, with all automatic choices made.
        spec: the specification of the environments.
        envs: the environments.
        device: the device of the updates.
        is_on_device: whether the environments step on that device.
        envs_to_close: a list that receives everything to close at the end of the run.
        initial: the policy to start from, None for new or restored networks.
    """

    config: AnyConfig
    spec: EnvSpec
    envs: Any
    device: torch.device
    is_on_device: bool
    envs_to_close: list[Any]
    initial: InitialPolicy | None = None


def make_sources(
    algorithm: Algorithm[AnyConfig],
    environment: str | Callable[..., Any],
    run: OpenedRun[AnyConfig],
    makers: Makers,
    envs_to_close: list[Any],
) -> Sources[AnyConfig]:
    """Make the training environments of a run, after choices that may need measurements.

    Raises:
        ConfigError, UnknownNameError, SpaceError, MissingExtraError, EnvironmentFailure: the
            environments can't be made.
    """
    config, device = run.config, choose_device(run.config.device)
    initial = None if run.checkpoint is not None else open_initial_policy(config)
    spec = training_spec(config, environment)
    on_device = steps_on_device(spec, config, is_able=algorithm.learns_on_device)
    if config.workers == "auto":
        config = _choose_workers(algorithm, config, spec, run.directory)
    if config.inference == "auto":
        config = _choose_inference(algorithm, config, spec, run.directory)
    if on_device:
        envs: Any = make_device_environments(config, spec, device)
    else:
        envs = makers.training(config, spec, run)
    return Sources(
        config=config,
        spec=spec,
        envs=envs,
        device=device,
        is_on_device=on_device,
        envs_to_close=envs_to_close,
        initial=initial,
    )


def training_spec(config: RunOptions, environment: str | Callable[..., Any]) -> EnvSpec:
    """Return the specification of a run's training environments."""
    return EnvSpec(
        environment,
        config.env_kwargs,
        seed=config.seed,
        action_masks=isinstance(config, MaskOptions) and config.action_masks,
        log_info=config.log_info,
    )


def make_environments(config: RunOptions, spec: EnvSpec, run: OpenedRun) -> Environments:
    """Make the training environments on the host, with a number of `workers`."""
    num_groups, num_envs = config.num_groups, config.total_envs // config.num_groups
    spec = dataclasses.replace(
        spec,
        first_episode=_first_new_episode(run.checkpoint),
        stagger=config.total_envs if config.workers else 0,
    )
    seed_global_generators(config.seed, "learner", spec.first_episode)
    if config.has_workers:
        return make_workers(config, spec, run.directory.path)
    groups: list[VectorEnv] = []
    try:
        for group in range(num_groups):
            groups.append(make_vec(dataclasses.replace(spec, first_env=group * num_envs), num_envs))
        return InlineEnvironments(groups)
    except BaseException:
        close_all(groups)
        raise


def make_workers(
    config: RunOptions,
    spec: EnvSpec,
    path: Path,
    agents: Mapping[str, Sequence[int]] | None = None,
) -> Any:
    """Make environments in Ray actors or in worker processes."""
    pool_options: dict[str, Any] = {
        "num_workers": config.num_groups,
        "envs_per_worker": config.total_envs // config.num_groups,
        "timing_dir": (path / "timing").absolute(),
        "agents": agents,
        "step_timeout_s": config.step_timeout_s,
        "max_failures": config.max_failures,
    }
    if config.backend == "ray":
        from hotloop.rollouts.ray.environments import RayEnvironments, RayOptions

        ray_options = RayOptions(
            address=config.ray_address,
            resources=config.worker_resources or {},
            workers_per_node=config.workers_per_node,
            runtime_env=config.ray_runtime_env or {},
            num_inference=config.inference_actors if config.inference == "central" else 0,
            inference_resources=config.inference_resources or {},
        )
        return RayEnvironments(spec, ray_options, **pool_options)
    from hotloop.rollouts.processes.pool import WorkerPool

    place = "central" if config.inference == "central" else "worker"
    return WorkerPool(spec, inference=place, **pool_options)


def steps_on_device(spec: EnvSpec, config: RunOptions, *, is_able: bool) -> bool:
    """Return whether a run's environments step on its device.

    Args:
        spec: the environments.
        is_able: whether the algorithm supports environments on the device.

    Raises:
        ConfigError: they do, but an option or the algorithm does not support that.
    """
    # If there are workers, only they import the modules of environments.
    may_import = not config.has_workers
    if not is_on_device(spec, may_import=may_import):
        return False
    conflict = ""
    if not is_able:
        conflict = "and this algorithm only learns from environments on the host: train ppo"
    elif config.workers:
        conflict = f"and needs no `workers`, got {config.workers!r}: leave the option out"
    elif spec.action_masks:
        conflict = "and has no action masks: leave `action_masks` out"
    elif config.is_recurrent:
        conflict = "where recurrent networks are not supported yet: leave `memory` out"
    elif spec.log_info:
        conflict = "and has no `info`: leave `log_info` out"
    elif config.eval_videos:
        conflict = "and renders no images: leave `eval_videos` out"
    if conflict:
        raise ConfigError(
            f"{spec.name} steps on the device, {conflict}, or choose another environment"
        )
    return True


def make_device_environments(
    config: RunOptions, spec: EnvSpec, device: torch.device
) -> DeviceEnvironments:
    """Make environments on the run's device."""
    seed_global_generators(config.seed, "learner")
    envs = make_device_vec(spec, config.total_envs, device)
    # A step launches about the same number of operations as an update.
    num_steps = config.total_timesteps // config.total_envs
    choice = choose(config.execution, num_calls=num_steps, flop_per_call=0.0, device=device)

    def execute(
        function: Callable[..., Any], name: str, *, copies_outputs: bool = True
    ) -> Execution:
        return Execution(function, choice, name, copies_outputs=copies_outputs)

    return DeviceEnvironments(envs, execute)


@dataclass(frozen=True, kw_only=True)
class Makers:
    """The functions that make a run's environments on the host, and adapt its stages.

    Attributes:
        training: makes the training environments from the configuration, the specification and the
            run.
        evaluation: makes those for evaluations from the specification and N.
        film: makes the rows of a game to record; None: the environment has one agent.
        adapt: returns the stages that the training loop runs.
        wait: yields requests with which the run waits for other runs, before its checkpoint is
            restored and before its first iteration.
        callbacks: further callbacks of the run.
    """

    training: Callable[[Any, EnvSpec, OpenedRun], Environments] = make_environments
    evaluation: Callable[[EnvSpec, int], VectorEnv] = make_vec
    film: Callable[[EnvSpec], VectorEnv] | None = None
    adapt: Callable[[Stages], Stages] = lambda stages: stages
    wait: Callable[[Stages], Iterable[UpdateRequest]] = lambda stages: ()
    callbacks: Sequence[Callback] = ()


ONE_POLICY = Makers()


def _choose_workers(
    algorithm: Algorithm[AnyConfig], config: AnyConfig, spec: EnvSpec, directory: RunDirectory
) -> AnyConfig:
    """Return the configuration with a measured choice for `workers` 'auto', and store it."""
    if config.backend == "inline":
        chosen: dict[str, Any] = {"workers": 0}
        record: dict[str, Any] = {"summary": "none: `backend` is 'inline'"}
    else:
        options = algorithm.collection_options(config)
        task = CollectionTask(
            num_envs=config.total_envs,
            num_steps=options.num_steps,
            num_remaining=config.total_timesteps,
            schedule=options.schedule,
            overlap=options.overlap,
            nonblocking_schedule=algorithm.nonblocking_schedule(config),
            num_cores=available_cores(),
            max_workers=probe.max_workers(),
        )
        choice = choose_collection(_measure(algorithm, config, spec), task)
        schedule = choice.chosen.schedule
        if schedule == options.schedule:  # use the option's name for it, such as lag:1
            schedule = config.schedule
        chosen = {"workers": choice.chosen.workers, "schedule": schedule}
        if choice.fragment_steps is not None:
            chosen["fragment_steps"] = choice.fragment_steps
        record = choice.to_json(schedule)
    directory.save_auto_choice(chosen, record)
    return with_values(type(config), vars(config), chosen)


def _choose_inference(
    algorithm: Algorithm[AnyConfig], config: AnyConfig, spec: EnvSpec, directory: RunDirectory
) -> AnyConfig:
    """Return the configuration with a measured choice for `inference` 'auto', and store it."""
    choice = inference.choose_inference(
        _measure(algorithm, config, spec),
        num_workers=config.num_groups,
        envs_per_worker=config.total_envs // config.num_groups,
        num_cores=available_cores(),
    )
    directory.save_auto_choice({"inference": choice.inference}, choice.to_json())
    return with_values(type(config), vars(config), {"inference": choice.inference})


def _measure(algorithm: Algorithm[AnyConfig], config: AnyConfig, spec: EnvSpec) -> EnvTiming:
    with span("probe"):
        return probe.measure(
            spec,
            partial(algorithm.acting_network, config),
            num_envs=config.total_envs,
            num_remaining=config.total_timesteps,
        )


def describe_workers(config: AlgorithmOptions, run: RunDirectory) -> str:
    """Return a description of the workers, empty without workers or a stored choice."""
    choice = run.auto_choice
    if choice is not None:
        return choice["summary"]
    if not config.workers:
        return ""
    num_envs = config.total_envs // config.num_groups
    where = {"inline": ", inline", "ray": ", on Ray"}.get(config.backend, "")
    overlap = ", overlapping with learning" if config.overlap else ""
    acting = ", central inference" if config.inference == "central" else ""
    return f"{config.workers} × {num_envs} environments, {config.schedule}{overlap}{acting}{where}"


def _first_new_episode(resumed: ResumedRun | None) -> int:
    episodes = () if resumed is None else resumed.position.rollout.episodes
    return 1 + max((episode for episode, _ in episodes), default=-1)
