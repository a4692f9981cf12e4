"""The environments of a run: in this process, in workers or on the device."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from hotloop.base.cores import available_cores
from hotloop.envs import EnvSpec, Spaces, VectorEnv, make_vec, seed_global_generators
from hotloop.envs.closing import close_all
from hotloop.envs.device import is_on_device, make_device_vec
from hotloop.errors import ConfigError
from hotloop.learner import Execution, choose
from hotloop.policies import Network
from hotloop.rollouts import CollectionOptions, Environments, InlineEnvironments, Schedule
from hotloop.rollouts.on_device import DeviceEnvironments
from hotloop.rollouts.planning import inference, probe
from hotloop.rollouts.planning.forecast import CollectionTask, EnvTiming, choose_collection
from hotloop.runs import RunDirectory
from hotloop.timing import span
from hotloop.training.options import with_values
from hotloop.training.resume import ResumedRun


def training_spec(environment: str | Callable[..., Any], config: Any) -> EnvSpec:
    """Return the specification of a run's environments, by an id or a factory."""
    return EnvSpec(
        environment,
        config.env_kwargs,
        seed=config.seed,
        action_masks=getattr(config, "action_masks", False),
        log_info=config.log_info,
    )


def make_environments(
    config: Any, spec: EnvSpec, run: RunDirectory, resumed: ResumedRun | None
) -> Environments:
    """Make the training environments on the host.

    Args:
        config: the configuration, with a number of `workers`.
        spec: the environments.
        run: the run directory, for the workers' timing.
        resumed: the checkpoint that the run resumes from.

    Raises:
        ConfigError, UnknownNameError, SpaceError, MissingExtraError, EnvironmentFailure: the
            environments can't be made.
    """
    num_groups, num_envs = config.num_groups, config.total_envs // config.num_groups
    spec = dataclasses.replace(
        spec,
        first_episode=_first_new_episode(resumed),
        stagger=config.total_envs if config.workers else 0,
    )
    seed_global_generators(config.seed, "learner", spec.first_episode)
    if config.has_workers:
        return _make_pool(config, spec, (run.path / "timing").absolute())
    groups: list[VectorEnv] = []
    try:
        for group in range(num_groups):
            groups.append(make_vec(dataclasses.replace(spec, first_env=group * num_envs), num_envs))
    except BaseException:
        close_all(groups)
        raise
    return InlineEnvironments(groups)


def _make_pool(config: Any, spec: EnvSpec, timing_dir: Path) -> Environments:
    """Make environments in Ray actors or in worker processes."""
    pool_options: dict[str, Any] = {
        "num_workers": config.num_groups,
        "envs_per_worker": config.total_envs // config.num_groups,
        "timing_dir": timing_dir,
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

    return WorkerPool(spec, inference=config.inference, **pool_options)


def steps_on_device(spec: EnvSpec, config: Any, *, is_able: bool) -> bool:
    """Return whether a run's environments step on its device.

    Args:
        spec: the environments.
        is_able: whether the algorithm supports environments on the device.

    Raises:
        ConfigError: they do, but an option or the algorithm does not support that.
    """
    # With workers, only they import the modules of environments.
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
    elif getattr(config, "memory", None) is not None:
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
    config: Any, spec: EnvSpec, device: torch.device
) -> DeviceEnvironments:
    """Make environments on the run's device.

    Raises:
        ConfigError, UnknownNameError, SpaceError, MissingExtraError, EnvironmentFailure: the
            environments can't be made.
    """
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


def choose_workers(
    config: Any,
    spec: EnvSpec,
    run: RunDirectory,
    *,
    options: CollectionOptions,
    make_network: Callable[[Spaces], Network],
    nonblocking_schedule: Schedule,
) -> Any:
    """Return the configuration with a measured choice for `workers` 'auto', and store the choice.

    Args:
        spec: the environments.
        run: the run directory, for the choice.
        options: how fragments are collected.
        make_network: a function that returns the acting network for given spaces.
        nonblocking_schedule: a schedule of the algorithm that waits for no worker, or `barrier`.
    """
    if config.backend == "inline":
        chosen: dict[str, Any] = {"workers": 0}
        record: dict[str, Any] = {"summary": "none: `backend` is 'inline'"}
    else:
        task = CollectionTask(
            num_envs=config.total_envs,
            num_steps=options.num_steps,
            num_remaining=config.total_timesteps,
            schedule=options.schedule,
            overlap=options.overlap,
            nonblocking_schedule=nonblocking_schedule,
            num_cores=available_cores(),
            max_workers=probe.max_workers(),
        )
        choice = choose_collection(_measure(config, spec, make_network), task)
        schedule = choice.chosen.schedule
        if schedule == options.schedule:  # use the option's name for it, such as lag:1
            schedule = config.schedule
        chosen = {"workers": choice.chosen.workers, "schedule": schedule}
        if choice.fragment_steps is not None:
            chosen["fragment_steps"] = choice.fragment_steps
        record = choice.to_json(schedule)
    run.save_auto_choice(chosen, record)
    return with_values(type(config), vars(config), chosen)


def choose_inference(
    config: Any,
    spec: EnvSpec,
    run: RunDirectory,
    make_network: Callable[[Spaces], Network],
) -> Any:
    """Return the configuration with a measured choice for `inference` 'auto', and store the choice.

    `config` has a number of workers; see `choose_workers` for the arguments.
    """
    choice = inference.choose_inference(
        _measure(config, spec, make_network),
        num_workers=config.num_groups,
        envs_per_worker=config.total_envs // config.num_groups,
        num_cores=available_cores(),
    )
    run.save_auto_choice({"inference": choice.inference}, choice.to_json())
    return with_values(type(config), vars(config), {"inference": choice.inference})


def _measure(config: Any, spec: EnvSpec, make_network: Callable[[Spaces], Network]) -> EnvTiming:
    with span("probe"):
        return probe.measure(
            spec,
            make_network,
            num_envs=config.total_envs,
            num_remaining=config.total_timesteps,
        )


def describe_workers(config: Any, run: RunDirectory) -> str:
    """Return a description of the workers, empty without workers or a stored choice."""
    choice = run.auto_choice
    if choice is not None:
        return choice["summary"]
    if not config.workers:
        return ""
    each = config.total_envs // config.num_groups
    where = {"inline": ", inline", "ray": ", on Ray"}.get(config.backend, "")
    overlap = ", overlapping with learning" if getattr(config, "overlap", False) else ""
    acting = ", central inference" if config.inference == "central" else ""
    return f"{config.workers} × {each} environments, {config.schedule}{overlap}{acting}{where}"


def _first_new_episode(resumed: ResumedRun | None) -> int:
    episodes = () if resumed is None else resumed.position.rollout.episodes
    return 1 + max((episode for episode, _ in episodes), default=-1)
