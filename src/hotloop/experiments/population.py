"""Population-based training in Ray Tune: the worst members continue from the best ones."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from hotloop.errors import ConfigError
from hotloop.experiments.ray_tune import RayExecutor
from hotloop.experiments.spaces import Choices, Range, Space
from hotloop.experiments.worker import pack
from hotloop.ops.schedules import Linear, Schedule, Steps, as_schedule, piecewise, steps
from hotloop.training.options import StopOptions
from hotloop.training.options.constraints import scheduled_options

if TYPE_CHECKING:
    from hotloop.experiments.plan import Plan
    from hotloop.experiments.runner import RunSpec


_FACTORS = 0.8, 1.25  # a mutation multiplies a number by one of them
_REDRAW_PROBABILITY = 0.25  # otherwise the current value is changed


def check_space(space: Space, config: Any) -> None:
    """Raise a ConfigError if an option of the space can't change during training."""
    schedulable = scheduled_options(type(config))
    for name, domain in space.items():
        if name not in schedulable:
            raise ConfigError(
                f"`--sampler pbt` changes options during training, but `{name}` can't change: "
                f"sweep over {', '.join(sorted(schedulable))}, or use another sampler"
            )
        if isinstance(domain, Choices) and not all(
            isinstance(x, int | float) for x in domain.values
        ):
            raise ConfigError(
                f"`--sampler pbt` creates schedules itself: give `{name}` numbers or a range"
            )


def check_generation(generations: int, config: Any) -> int:
    """Return the steps of a generation. Raise a ConfigError if an iteration has more."""
    interval = config.total_timesteps // generations
    iteration = getattr(config, "num_steps", 1) * config.total_envs
    if iteration > interval:
        raise ConfigError(
            f"a generation has {interval:,} steps, and an iteration {iteration:,}: lower "
            "`--generations`, or raise `--total-timesteps`"
        )
    return interval


def check_fixed_options(config: Any, space: Space) -> None:
    """Raise a ConfigError if generations can't respect an option."""
    defaults = {field.name: field.default for field in dataclasses.fields(config)}
    reasons = dict.fromkeys(
        ("checkpoint_interval", "keep_checkpoints"), "a population saves after each generation"
    )
    stops = (field.name for field in dataclasses.fields(StopOptions))
    reasons |= dict.fromkeys(stops, "all members of a generation take the same steps")
    for name, reason in reasons.items():
        if getattr(config, name) != defaults[name]:
            raise ConfigError(f"{reason}, so `{name}` has no effect: leave it out")
    for own in ({}, *config.policy_options.values()):
        schedule_parts(config, own, space, 1.0)


def schedule_parts(
    config: Any, own: Mapping[str, Any], space: Space, share: float
) -> dict[str, str]:
    """Return the first parts of the schedules of a policy's options outside of the space, by name.

    Args:
        config: the configuration of all policies.
        own: the options of this policy alone.
        space: the search space.
        share: see `first_part`.

    Raises:
        ConfigError: see `first_part`.
    """
    names = sorted(scheduled_options(type(config)) - space.keys())
    values = {name: own.get(name, getattr(config, name)) for name in names}
    schedules = {name: as_schedule(x) for name, x in values.items() if x is not None}
    return {
        name: str(first_part(schedule, share, name))
        for name, schedule in schedules.items()
        if not schedule.is_constant
    }


def first_part(schedule: Schedule, share: float, name: str) -> Schedule:
    """Return a schedule whose progress from 0 to 1 is that from 0 to `share` of another one.

    Raises:
        ConfigError: it is a cosine or a function. `name` is that of its option.
    """
    points = getattr(schedule, "points", ())
    if type(schedule) is Linear:
        points = ((0.0, schedule.start), (schedule.until, schedule.end))
    elif not points:
        raise ConfigError(
            f"members train in generations, so `{name}` must be a number, or a schedule of points, "
            f"got '{schedule}': use `linear`, `piecewise` or `steps`"
        )
    kept = [(position / share, value) for position, value in points if position < share]
    if isinstance(schedule, Steps):
        return steps(kept or [(0.0, schedule(0.0))])
    return piecewise([*kept, (1.0, schedule(share))])


def mutate(domain: Choices | Range, value: Any, rng: np.random.Generator) -> Any:
    """Return a changed value: multiplied by 0.8 or 1.25, a neighbor in a list, or drawn again."""
    if rng.random() < _REDRAW_PROBABILITY:
        return domain.draw(rng)
    direction = int(rng.integers(2))  # 0: down, 1: up
    if isinstance(domain, Choices):
        index = domain.values.index(value) + 2 * direction - 1
        return domain.values[min(max(index, 0), len(domain.values) - 1)]
    changed = min(max(value * _FACTORS[direction], domain.low), domain.high)
    return round(changed) if domain.is_int else changed


def check_population(space: Space, plan: Plan, config: Any) -> None:
    """Raise an error if population-based training does not support a plan.

    Raises:
        ConfigError: an option of the space can't change during training, there is no population,
            or a generation is shorter than an iteration, for example.
    """
    check_space(space, config)
    # Check the plan.
    if len(plan.seeds) > 1:
        raise ConfigError(
            f"`--sampler pbt` needs trials with one seed, got {len(plan.seeds)}: pass one, and "
            "test the best trial on others with `hotloop sweep report --test-seeds`"
        )
    if plan.trials is None or plan.trials < 2:
        raise ConfigError(
            "`--sampler pbt` needs a population: pass `--trials` with 2 or more, such as 8"
        )
    if plan.hours is not None:
        raise ConfigError("`--hours` stops between trials, but a population trains all together")
    if plan.pruner != "none":
        raise ConfigError("`--sampler pbt` replaces the worst trials itself: remove `--pruner`")
    if plan.jobs is not None:
        raise ConfigError("`--sampler pbt` does not support `--jobs`: remove it")
    if config.track:
        raise ConfigError("`--track` follows one run, but members continue one another's runs")
    interval = check_generation(plan.generations or 1, config)
    eval_interval = getattr(config, "eval_interval", None)
    if plan.metric == "evaluation" and (eval_interval is None or eval_interval > interval):
        raise ConfigError(
            f"each generation of {interval:,} steps needs an evaluation: lower `--eval-interval`"
        )


class PopulationExecutor(RayExecutor):
    """An executor that trains all runs side by side, and changes their options between generations.

    Raises:
        ConfigError: population-based training does not support the plan.
        MissingExtraError: Ray Tune is not installed.
    """

    def __init__(self, plan: Plan, config: Any, space: Space) -> None:
        check_population(space, plan, config)
        super().__init__(plan, config)
        self._space, self.generations = space, plan.generations or 1

    def tune_options(
        self, tune: Any, specs: Iterator[RunSpec]
    ) -> tuple[dict[str, Any], dict[str, Any], str | None]:
        from ray.tune.search import BasicVariantGenerator

        # Start over after a kill, since members can only be compared within a generation.
        runner, space = self.runner, self._space
        runner.results.delete_runs(self.plan.steps)
        runner.load()
        missing = [x for x in runner.missing_specs() if runner.claim(x, runner.config) is not None]
        runner.load()
        points = [{"run": self.register(spec), **spec.trial.params} for spec in missing]
        domains = {name: _tune_domain(tune, x) for name, x in space.items()}
        scheduler = _population_scheduler(self.plan.sampler_seed)(
            time_attr="generation",
            perturbation_interval=1,
            hyperparam_mutations=domains,
            custom_explore_fn=lambda config: _clip_to_ranges(config, space),
            log_config=False,
            synch=True,  # the same seed gives the same population, in whatever order reports arrive
        )
        options = {
            "scheduler": scheduler,
            "search_alg": BasicVariantGenerator(points_to_evaluate=points),
            "num_samples": len(points),
        }
        interval = max(1, self.plan.steps // self.generations)
        changes: dict[str, Any] = {"checkpoint_interval": interval, "seed": self.plan.seeds[0]}
        if hasattr(runner.config, "save_replay"):
            changes["save_replay"] = True  # a member that continues another needs its buffer
            changes["report_interval"] = min(runner.config.report_interval, interval)
        config = pack(dataclasses.replace(runner.config, **changes))
        runs = tune.choice([point["run"] for point in points])
        return options, {"run": runs, **domains}, config


def _tune_domain(tune: Any, domain: Choices | Range) -> Any:
    if isinstance(domain, Choices):
        return list(domain.values)
    return (tune.loguniform if domain.is_log else tune.uniform)(domain.low, domain.high)


def _clip_to_ranges(config: dict[str, Any], space: Space) -> dict[str, Any]:
    """Return options clipped to their ranges, since Tune multiplies them by 0.8 or 1.2."""
    ranges = {name: x for name, x in space.items() if isinstance(x, Range)}
    return config | {name: min(max(config[name], x.low), x.high) for name, x in ranges.items()}


def _population_scheduler(seed: int) -> Any:
    """Return Tune's population-based training, whose draws depend on seed and generation."""
    # Tune draws from the global generators of the process. It makes all changes of a generation
    # when the last member reports, in any order.
    from ray.tune.schedulers import PopulationBasedTraining

    class SeededPopulation(PopulationBasedTraining):
        """Population-based training that is reproducible and does not wait for failed members."""

        def on_trial_result(self, tune_controller: Any, trial: Any, result: Any) -> str:
            random.seed(f"{seed} {result['generation']}")
            np.random.seed([seed, result["generation"]])  # noqa: NPY002
            return super().on_trial_result(tune_controller, trial, result)

        def choose_trial_to_run(self, tune_controller: Any) -> Any:
            next_trial = super().choose_trial_to_run(tune_controller)
            live = [x for x in tune_controller.get_trials() if not x.is_finished()]
            if next_trial is None and live and all(x.status == x.PAUSED for x in live):
                # The last member of a generation failed, so no report would end the generation.
                states = [self._trial_state[x] for x in live]
                last_generation = max(state.last_train_time for state in states)
                for state in states:
                    state.last_perturbation_time = last_generation
                self._next_perturbation_sync = last_generation + 1
                next_trial = super().choose_trial_to_run(tune_controller)
            return next_trial

    return SeededPopulation
