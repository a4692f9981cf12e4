"""An algorithm, declared: its mathematics as functions, and what holds them together."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hotloop.envs import Spaces
from hotloop.errors import ConfigError
from hotloop.importing import importable
from hotloop.learner import Learner, Normalizer, UpdateRule
from hotloop.learner.device_normalizer import DeviceNormalizer
from hotloop.policies import Network
from hotloop.policies.learned import LearnedNetwork
from hotloop.rollouts import CollectionOptions, Schedule
from hotloop.runs import OnReport, Result
from hotloop.training.learning import Run
from hotloop.training.shown import Shown
from hotloop.types import Array

if TYPE_CHECKING:
    from hotloop.training.running import Training


@dataclass(frozen=True, kw_only=True)
class Algorithm(ABC):
    """The parts that on-policy and off-policy algorithms have in common.

    Attributes:
        name: in the field's words; run directories are called by it.
        config: the class of its configuration.
        networks: `networks(config, spaces, device)` gives what is learned: a `LearnedNetwork`, or
            anything that has the acting one as `policy`.
        init: `init(nets, config)` gives the first state, a dataclass of tensors.
        hyper: a NamedTuple class whose fields are options of `config`, see `hyper_of`; or
            `hyper(config, nets)`, which gives such a tuple of numbers and schedules.
        acting: the state's field that holds the acting network's parameters, (P,).
        presets: by environment, or by what its id begins with up to a slash or a colon, options
            that stand in for those that are not given.
    """

    name: str
    config: type
    networks: Callable[..., Any]
    init: Callable[..., Any]
    hyper: Callable[..., Any]
    acting: str = "params"
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("networks", "init", "hyper", *self._functions()):
            if not callable(getattr(self, name)):
                raise ConfigError(
                    f"the algorithm '{self.name}' must have `{name}`, a function, got "
                    f"{getattr(self, name)!r}: see `{type(self).__name__}`"
                )
        for name in self._options():
            if name not in {field.name for field in dataclasses.fields(self.config)}:
                raise ConfigError(
                    f"the algorithm '{self.name}' names an option `{name}` that its Config does "
                    "not have: add it, or name another one"
                )

    @property
    def learns_on_device(self) -> bool:
        """Whether it learns from environments whose tensors stay on the device."""
        return False

    @abstractmethod
    def run(self, training: Training) -> Run[Result]:
        """Train until the steps are done or the run is told to stop; yield what to learn."""

    @abstractmethod
    def collection_options(self, config: Any) -> CollectionOptions:
        """How fragments are collected."""

    @abstractmethod
    def uneven(self, config: Any) -> Schedule:
        """The schedule that it can learn from, and that waits for no worker; `barrier`: none."""

    def _functions(self) -> tuple[str, ...]:
        """Names of the functions that this kind of algorithm needs besides."""
        return ()

    def _options(self) -> tuple[str, ...]:
        """Names of options that the declaration refers to."""
        return ()

    def train(
        self,
        config: Any,
        *,
        env: str | Callable[..., Any] | None = None,
        network: str | Callable[..., Any] | None = None,
        on_report: OnReport | None = None,
        on_end: Callable[[Result | None], None] | None = None,
        resume_from: str | Path | None = None,
        progress: bool = True,
    ) -> Result:
        """Train, and leave a run directory behind; see `hotloop.training.train`.

        With `progress`, where it stands is printed: a line that is redrawn in a terminal, one every
        5 s elsewhere. In the end the learning curve is drawn into the run directory.
        """
        from hotloop.training.running import train

        with contextlib.ExitStack() as exits:
            if progress:
                shown = Shown(config, on_report, on_end)
                exits.callback(shown.close)
                on_report, on_end = shown.on_report, shown.on_end
            return train(
                self,
                config,
                env=env,
                network=network,
                on_report=on_report,
                on_end=on_end,
                resume_from=resume_from,
            )

    def preset(self, env_id: str, **options: Any) -> Any:
        """Return the configuration that suits an environment; `options` come first."""
        return self.config(**{"env_id": env_id, **preset_of(self.presets, env_id), **options})

    @property
    def reference(self) -> str:
        """Return what `hotloop.algorithms.find` finds it by: `ppo`, or `module:attribute`.

        Of one that is no module's attribute it is a name with a `<` in it.
        """
        parts = (getattr(self, field.name) for field in dataclasses.fields(self))
        modules = dict.fromkeys(getattr(part, "__module__", None) for part in parts)
        for module in filter(None, [*modules, "__main__"]):
            held = vars(sys.modules[module]).items() if module in sys.modules else ()
            attribute = next((name for name, value in held if value is self), None)
            if attribute is not None and module == f"hotloop.algorithms.{self.name}":
                return self.name
            if attribute is not None:
                return f"{importable(module)}:{attribute}"
        return f"{importable(self.config.__module__)}:<{self.name}>"

    def acting_network(self, config: Any, spaces: Spaces) -> Network:
        """Return what acts in environments with such spaces, without parameters."""
        return acting(self.networks(config, spaces, torch.device("cpu"))).network

    def make_learner(
        self,
        config: Any,
        nets: Any,
        rules: list[UpdateRule],
        *,
        device: torch.device,
        stream: int,
        num_batches: int,
        batch_size: int,
        overlap: bool = False,
    ) -> Learner:
        """Return what owns the state.

        Args:
            config: the run's.
            nets: what `networks` gave.
            rules: the updates.
            device: where it lives.
            stream: of random numbers, beside the run's seed.
            num_batches: that the run will learn from, about.
            batch_size: B.
            overlap: see `Learner`.

        Raises:
            ConfigError: the declaration does not fit its configuration or its state.
        """
        if getattr(config, "memory", None) is not None and not acting(nets).network.memory_size:
            raise ConfigError(
                f"the networks of '{self.name}' remember nothing, got `memory` '{config.memory}': "
                "pass `memory=config.memory` to what makes them, or leave the option out"
            )
        state = self.init(nets, config)
        if not isinstance(getattr(state, self.acting, None), torch.Tensor):
            raise ConfigError(
                f"the algorithm '{self.name}': its state must have the acting network's parameters "
                f"as `{self.acting}`, a tensor: name that field in `acting`"
            )
        is_class = isinstance(self.hyper, type)
        hyper = hyper_of(self.hyper, config) if is_class else self.hyper(config, nets)
        return Learner(
            state,
            hyper,
            rules,
            network=acting(nets),
            acting=self.acting,
            device=device,
            seed=(config.seed, stream),
            execution=config.execution,
            num_batches=num_batches,
            batch_size=batch_size,
            overlap=overlap,
        )


def preset_of(presets: Mapping[str, Mapping[str, Any]], env_id: str) -> Mapping[str, Any]:
    """Return an environment's preset; empty where it has none.

    What has none of its own takes that of what its id begins with, up to a slash or a colon;
    `VizdoomBasic-v1` is `vizdoom:VizdoomBasic-v1`.
    """
    if env_id.startswith("Vizdoom"):
        env_id = f"vizdoom:{env_id}"
    beginning = env_id[: max(env_id.rfind("/"), env_id.rfind(":")) + 1]
    return presets.get(env_id) or presets.get(beginning) or {}


def hyper_of(kind: Any, config: Any) -> Any:
    """Return a Hyper with the options of its names.

    An option that is None, which switches something off, becomes 0; `gamma` becomes 1 where a
    buffer's batches hold γⁿ already.

    Args:
        kind: a NamedTuple class.
        config: the run's.

    Raises:
        ConfigError: the config has no option of such a name.
    """
    values: dict[str, Any] = {}
    for name in kind._fields:
        if not hasattr(config, name):
            raise ConfigError(
                f"`{name}` of {kind.__module__}'s {kind.__name__} is no option of its Config: add "
                "the option, or give `hyper` a function that returns the whole tuple"
            )
        values[name] = 0.0 if getattr(config, name) is None else getattr(config, name)
    if "gamma" in values and getattr(config, "n_step", 1) > 1:
        values["gamma"] = 1.0
    return kind(**values)


def make_device_normalizer(
    config: Any, spaces: Spaces, num_envs: int, *, gamma: float, device: torch.device
) -> DeviceNormalizer:
    """Return the same as `make_normalizer`, for fragments on a device."""
    return DeviceNormalizer(
        spaces.obs_spec.shape,
        num_envs,
        device=device,
        normalize_obs=config.normalize_obs,
        normalize_reward=config.normalize_reward,
        clip_obs=config.clip_obs,
        clip_reward=config.clip_reward,
        gamma=gamma,
    )


def make_normalizer(config: Any, spaces: Spaces, num_envs: int, *, gamma: float) -> Normalizer:
    """Return what normalises observations, and rewards where the config has the options.

    Args:
        config: the run's.
        spaces: what is observed.
        num_envs: N.
        gamma: γ.

    Raises:
        ConfigError: these observations can't be normalised.
    """
    if spaces.obs_spec.is_packed and (config.normalize_obs or config.clip_obs is not None):
        raise ConfigError(
            "`normalize_obs` and `clip_obs` are of numbers alone, and these observations hold "
            "images beside: leave them out, or normalise in a wrapper of the environment"
        )
    normalize_reward = getattr(config, "normalize_reward", False)
    return Normalizer(
        spaces.obs_spec.shape,
        num_envs,
        normalize_obs=config.normalize_obs,
        normalize_reward=normalize_reward,
        clip_obs=config.clip_obs,
        clip_reward=config.clip_reward,
        gamma=gamma,
        mask_size=spaces.obs_spec.mask_size,
    )


def acting(nets: Any) -> LearnedNetwork:
    """Return the network that acts among those that are learned."""
    return getattr(nets, "policy", nets)


def joined_arrays(parts: Sequence[Callable[[], Mapping[str, Array]]]) -> dict[str, Array]:
    """Return all arrays of a checkpoint; only put together if it is saved."""
    return {name: array for part in parts for name, array in part().items()}
