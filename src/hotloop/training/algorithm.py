"""The declaration of an algorithm: its networks, state, hyper-parameters and presets."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic

import torch

from hotloop.base.importing import importable
from hotloop.base.signals import interrupt_by_default
from hotloop.envs import Spaces, kept_global_generators
from hotloop.envs.closing import closing_environments
from hotloop.errors import ConfigError
from hotloop.policies import Network
from hotloop.policies.spec import is_built_in
from hotloop.rollouts import CollectionOptions, Schedule
from hotloop.runs import OnReport, Report, RunResult
from hotloop.training.learners import policy_network
from hotloop.training.options import (
    AnyConfig,
    Factory,
    MaskOptions,
    MemoryOptions,
    NetworkOptions,
    Options,
)
from hotloop.training.progress_display import ProgressDisplay
from hotloop.training.run_updates import drive

if TYPE_CHECKING:
    from hotloop.training.callbacks import Callback
    from hotloop.training.loop import Stages
    from hotloop.training.sources import Sources


@dataclass(frozen=True, kw_only=True)
class Algorithm(ABC, Generic[AnyConfig]):
    """The parts that on-policy and off-policy algorithms have in common.

    Attributes:
        name: the algorithm's name, which names its run directories.
        config: the class of its configuration.
        networks: `networks(config, spaces, device)` returns the learned networks: a
            `LearnedNetwork`, or any object whose `policy` is the acting `LearnedNetwork`.
        init: `init(nets, config)` returns the initial state, a dataclass of tensors.
        hyper: a NamedTuple class whose fields are options of `config`, see `hyper_of`; or
            `hyper(config, nets)`, which returns such a tuple of numbers and schedules.
        acting: the name of the state's field with the acting network's parameters, (P,).
        batch_options: options that change only the values of batches, so lanes may differ in them.
        learns_on_device: whether fragments may be tensors, from environments on the device.
        presets: default options by environment id, or by the id's prefix up to a slash or a colon.
    """

    name: str
    config: type[AnyConfig]
    networks: Callable[..., Any]
    init: Callable[..., Any]
    hyper: Callable[..., Any]
    acting: str = "params"
    batch_options: ClassVar[tuple[str, ...]] = ()
    learns_on_device: bool = False
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("networks", "init", "hyper", *self._required_functions()):
            if not callable(getattr(self, name)):
                raise ConfigError(
                    f"the algorithm '{self.name}' must have a function `{name}`, got "
                    f"{getattr(self, name)!r}: see `{type(self).__name__}`"
                )
        for name in self._referenced_options():
            if name not in {field.name for field in dataclasses.fields(self.config)}:
                raise ConfigError(
                    f"the algorithm '{self.name}' names an option `{name}` that its Config does "
                    "not have: add it, or name another one"
                )
        for name, group in (("action_masks", MaskOptions), ("memory", MemoryOptions)):
            has_option = name in {field.name for field in dataclasses.fields(self.config)}
            if has_option and not issubclass(self.config, group):
                raise ConfigError(
                    f"the Config of '{self.name}' has an option `{name}` of its own, which would "
                    f"have no effect: inherit `{group.__name__}` instead"
                )

    @abstractmethod
    def make_stages(self, sources: Sources[AnyConfig]) -> Stages:
        """Return the stages of a run in these environments, for the training loop."""

    @abstractmethod
    def collection_options(self, config: AnyConfig) -> CollectionOptions:
        """Return how fragments are collected."""

    @abstractmethod
    def nonblocking_schedule(self, config: AnyConfig) -> Schedule:
        """Return the supported schedule that waits for no worker, or `barrier` if there is none."""

    def _required_functions(self) -> tuple[str, ...]:
        return ()

    def _referenced_options(self) -> tuple[str, ...]:
        return ()

    def train(
        self,
        config: AnyConfig | Factory | None = None,
        *,
        env: str | Callable[..., Any] | None = None,
        network: str | Callable[..., Any] | None = None,
        callbacks: Sequence[Callback] = (),
        on_report: OnReport | None = None,
        on_end: Callable[[RunResult | None], None] | None = None,
        resume_from: str | Path | None = None,
        progress: bool = True,
        **options: Any,
    ) -> RunResult:
        """Train, and write a run directory.

        ```python
        result = ppo.train("CartPole-v1", total_timesteps=1e5)
        result = ppo.train(ppo.Config(env_id="CartPole-v1", total_timesteps=1e5))
        ```

        Args:
            config: the configuration, of the algorithm's `config` class; or an environment, as for
                the option `env_id`, whose preset replaces defaults.
            env: a factory of environments, called with `config.env_kwargs`; replaces
                `config.env_id`.
            network: a class or function that makes a torch module; replaces `config.network`.
            callbacks: callbacks, see `hotloop.training.Callback`. Built-in ones stop the run.
            on_report: called before the first iteration and after each; returning True stops the
                run.
            on_end: called with the result, or with None after an error or Ctrl-C. The run's files
                are written by then, and environments are closed later, so a failing `close` loses
                nothing.
            resume_from: a run directory, or a checkpoint in one, to resume. Options must be
                unchanged, except `total_timesteps`, which may grow, and options that do not change
                the weights.
            progress: whether to print a progress line, redrawn in a terminal, one every 5 s
                elsewhere, and to draw the learning curve into the run directory at the end.
            options: options of the configuration, if `config` is not one.

        Returns:
            The policy and where everything was written.

        Raises:
            ConfigError, UnknownNameError, SpaceError, MissingExtraError: before the run starts.
            CheckpointError: the checkpoint is damaged or belongs to another run.
            CallbackError: a callback raised. The run is saved.
            EnvironmentFailure: an environment raised, or returned values outside its spaces.
            NonFiniteError: a loss was NaN or infinite.
            RunDirectoryError: the run directory exists, is missing, is in use, or can't be written.
            KeyboardInterrupt: after metrics, timing and the last checkpoint were written. Ctrl-C,
                `kill`, a closed terminal or a cluster's warning raises it, unless your program
                handles or ignores that signal.

        The process records its timing into the run directory, which ends a recording of the caller.
        To record again afterwards, call `timing.start`. Environments of this process have 10 s to
        close at the end, and a slower or failing `close` causes a warning. There is no limit
        outside the main thread.
        """
        from hotloop.training.run import run_training

        config = self._configure(config, options)
        if config.has_policies:
            raise ConfigError(
                "`policies` are trained together, each with a result of its own: call "
                "`hotloop.training.train_policies` instead of `train`, or leave `policies` out"
            )
        if network is not None:
            config = dataclasses.replace(config, network=network)
        environment = config.env_id if env is None else env
        with contextlib.ExitStack() as exits:
            if progress:
                display = ProgressDisplay(config.total_timesteps, on_report, on_end)
                exits.callback(display.close)
                on_report, on_end = display.on_report, display.on_end
            guard = exits.enter_context(interrupt_by_default())

            def on_report_unless_interrupted(report: Report) -> bool | None:
                guard.check()
                return None if on_report is None else on_report(report)

            with kept_global_generators(), closing_environments() as envs:
                report = on_report_unless_interrupted
                arguments = (config, environment, report, on_end, resume_from)
                return drive(
                    run_training(self, *arguments, callbacks=callbacks, envs_to_close=envs)
                )

    def preset(self, env_id: Factory, **options: Any) -> AnyConfig:
        """Return the configuration for an environment; `options` override the preset."""
        preset = without_layers(preset_of(self.presets, env_id), self.config, options)
        return self.config(**{"env_id": env_id, **preset, **options})

    def _configure(
        self, config: AnyConfig | Factory | None, options: Mapping[str, Any]
    ) -> AnyConfig:
        """Return the configuration from the arguments of `train`."""
        if config is None and "env_id" not in options:
            return self.config(**options)
        if not isinstance(config, Options):
            return self.preset(**({} if config is None else {"env_id": config}), **options)
        if options:
            raise ConfigError(
                f"options must be in the configuration if there is one, got {', '.join(options)} "
                f"beside it: write `{self.name}.Config({next(iter(options))}=…)`, or pass the "
                "environment and all options to `train`"
            )
        if not isinstance(config, self.config):
            raise ConfigError(
                f"the configuration of '{self.name}' must be a {self.config.__module__}."
                f"{self.config.__qualname__}, got a {type(config).__module__}."
                f"{type(config).__qualname__}: make one of that class, or pass an environment's id "
                "and options"
            )
        return config

    @property
    def reference(self) -> str:
        """Return the name for `hotloop.algorithms.find`: `ppo`, or `module:attribute`.

        The name contains a `<` if the algorithm is not an attribute of a module.
        """
        parts = (getattr(self, field.name) for field in dataclasses.fields(self))
        modules = dict.fromkeys(getattr(part, "__module__", None) for part in parts)
        for module in filter(None, [*modules, "__main__"]):
            attributes = vars(sys.modules[module]).items() if module in sys.modules else ()
            attribute = next((name for name, value in attributes if value is self), None)
            if attribute is not None and module == f"hotloop.algorithms.{self.name}":
                return self.name
            if attribute is not None:
                return f"{importable(module)}:{attribute}"
        return f"{importable(self.config.__module__)}:<{self.name}>"

    def acting_network(self, config: AnyConfig, spaces: Spaces) -> Network:
        """Return the acting network for these spaces, without parameters."""
        return policy_network(self.networks(config, spaces, torch.device("cpu"))).network


def preset_of(presets: Mapping[str, Mapping[str, Any]], env_id: Factory) -> Mapping[str, Any]:
    """Return an environment's preset, or an empty mapping.

    An id without a preset takes the preset of its prefix up to a slash or a colon.
    `VizdoomBasic-v1` is `vizdoom:VizdoomBasic-v1`. A class or function has no preset.
    """
    if not isinstance(env_id, str):
        return {}
    if env_id.startswith("Vizdoom"):
        env_id = f"vizdoom:{env_id}"
    prefix = env_id[: max(env_id.rfind("/"), env_id.rfind(":")) + 1]
    return presets.get(env_id) or presets.get(prefix) or {}


def without_layers(
    preset: Mapping[str, Any], config_class: type, options: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return a preset without options of layers, if `options` have a custom network instead."""
    network = options.get("network")
    if network is None or is_built_in(network) or not issubclass(config_class, NetworkOptions):
        return preset
    return {name: x for name, x in preset.items() if name not in config_class.layer_options}
