"""ViZDoom's scenarios as agents see them: a small picture, and the game's numbers.

Kempka et al. 2016, "ViZDoom: A Doom-based AI Research Platform for Visual Reinforcement Learning",
arXiv:1605.02097. Frames are skipped, and pictures sized, as in Sample Factory's experiments with
Doom: Petrenko et al. 2020, arXiv:2006.11751.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from hotloop.errors import ConfigError, MissingExtraError, nearest

_MODULE = "vizdoom"
# Settings of the game that `env_kwargs` may have, beside its rewards and what it draws.
_SETTINGS = (
    "available_buttons",
    "available_game_variables",
    "doom_game_path",
    "doom_map",
    "doom_scenario_path",
    "doom_skill",
    "episode_start_time",
    "episode_timeout",
    "game_args",
    "screen_resolution",
)
_PATHS = ("doom_game_path", "doom_scenario_path", "scenario_config_file")
_OF_WRAPPER = ("max_buttons_pressed", "scenario_config_file", "render_mode")
# Buffers that scenarios may turn on, and that are not observed here.
_BUFFERS = ("audio", "automap", "depth", "labels", "notifications")
# Scenarios that are about one of them.
_OF_SOUND_OR_TEXT = {"basic_audio.cfg": "sound", "basic_notifications.cfg": "text"}


# The hand with the weapon swings, and by how much depends on how the last episode ended. Without,
# an episode is the same in every process.
_STEADY = "+movebob 0"


@dataclass(frozen=True, kw_only=True)
class View:
    """What an agent sees of a game, and how often."""

    frame_skip: int = 4
    """Tics of the game, 35 a second, in a step; all but the last are not drawn."""
    resolution: tuple[int, int] = (128, 72)
    """Width and height of the picture."""
    grayscale: bool = False
    """Whether the picture has one channel and not three."""
    game_variables: bool = True
    """Whether the scenario's variables are observed, where it has some."""
    variable_scale: float = 0.01
    """They are multiplied by this: health, armour and ammunition are some hundreds at most."""


_VIEW = tuple(field.name for field in fields(View))


def plain_id(env: str) -> str:
    """Return an id without the module before it: `vizdoom:VizdoomBasic-v1` means the same."""
    return env.removeprefix(f"{_MODULE}:") if env.startswith(f"{_MODULE}:Vizdoom") else env


def scenario_of(name: str, registry: Mapping[str, Any]) -> Any:
    """Return Gymnasium's spec of a scenario that comes with ViZDoom; None: the id is of none.

    An id without a version means the latest.
    """
    versions = [
        spec for spec in registry.values() if name in (spec.id, spec.id.rpartition("-v")[0])
    ]
    spec = max(versions, key=lambda one: one.version or 0, default=None)
    own = f"{_MODULE}.gymnasium_wrapper."
    return spec if spec is not None and str(spec.entry_point).startswith(own) else None


def make_scenario(spec: Any, kwargs: Mapping[str, Any]) -> Any:
    """Return an environment, whose game starts at the first reset.

    Args:
        spec: Gymnasium's, of the id.
        kwargs: of `View`, ViZDoom's own `max_buttons_pressed` and `scenario_config_file`, and
            settings of the game by the names that its .cfg files have.

    Raises:
        ConfigError: they do not fit.
        MissingExtraError: ViZDoom or OpenCV is not installed.
    """
    try:
        import vizdoom
    except ImportError as error:
        raise MissingExtraError(
            f"environment '{spec.id}' needs ViZDoom ({error}): pip install 'hotloop[doom]'"
        ) from error
    from hotloop.envs.doom.scenario import Scenario, drawn_resolution

    names = (name.removeprefix("set_") for name in dir(vizdoom.DoomGame) if name.startswith("set_"))
    settings = [
        name
        for name in names
        if name in _SETTINGS or name.startswith("render_") or name.endswith(("_reward", "_penalty"))
    ]
    for name in kwargs:
        if name not in (*_VIEW, *_OF_WRAPPER, *settings):
            known = [*_VIEW, *_OF_WRAPPER[:-1], *settings]
            raise ConfigError(
                f"{spec.id}: `env_kwargs` has no '{name}'"
                + (nearest(name, known) or f": there are {', '.join(known)}")
            )
    view = _checked_view(spec.id, {name: x for name, x in kwargs.items() if name in _VIEW})
    config_file = kwargs.get("scenario_config_file", spec.kwargs.get("scenario_config_file"))
    if config_file in _OF_SOUND_OR_TEXT:
        raise ConfigError(
            f"{spec.id}: {_OF_SOUND_OR_TEXT[config_file]} is not observed: take VizdoomBasic-v1"
        )
    if kwargs.get("render_mode") not in (None, "rgb_array"):
        raise _unfit(spec.id, "render_mode", "'rgb_array'", kwargs["render_mode"])
    num_pressed = kwargs.get("max_buttons_pressed", 0)
    if num_pressed != 0 and not _is_count(num_pressed):
        raise _unfit(spec.id, "max_buttons_pressed", "a whole number from 0 on", num_pressed)
    given = {name: x for name, x in kwargs.items() if name in settings}
    for name in given:
        if not vizdoom.DoomGame().set_config({name: given[name]}):
            raise ConfigError(
                f"{spec.id}: ViZDoom does not take {given[name]!r} for `{name}`: write it as "
                "in its own .cfg files"
            )
    arguments = {name: x for name, x in kwargs.items() if name in _OF_WRAPPER}
    arguments |= given | {f"{name}_buffer_enabled": False for name in _BUFFERS}
    arguments |= {"sound_enabled": False, "use_multi_binary_action_space": False}
    arguments["game_args"] = f"{_STEADY} {given.get('game_args', '')}".strip()
    arguments["screen_format"] = "GRAY8" if view.grayscale else "RGB24"
    arguments.setdefault("screen_resolution", drawn_resolution(view.resolution))
    for name in arguments.keys() & _PATHS:
        arguments[name] = _found(spec.id, name, arguments[name], vizdoom.scenarios_path)
    return Scenario(spec, arguments, view)


def _found(env_id: str, name: str, path: Any, scenarios: str) -> str:
    """Return a file's absolute path, since games start in another directory.

    Raises:
        ConfigError: it is neither here nor among ViZDoom's scenarios.
    """
    for folder in ("", scenarios):
        if os.path.isfile(found := os.path.join(folder, str(path))):
            return os.path.abspath(found)
    raise ConfigError(
        f"{env_id}: `{name}` in `env_kwargs` must be a file, and there is no '{path}' here, nor "
        "among ViZDoom's scenarios: give its whole path"
    )


def _checked_view(env_id: str, given: Mapping[str, Any]) -> View:
    """Return a view.

    Raises:
        ConfigError: one of its values is of another kind.
    """
    view = dict(given)
    for name, value in given.items():
        if name == "resolution":
            is_pair = isinstance(value, (list, tuple)) and len(value) == 2
            if not is_pair or not all(_is_count(side) for side in value):
                raise _unfit(env_id, name, "[width, height] in pixels", value)
            view[name] = tuple(value)
        elif name == "frame_skip":
            if not _is_count(value):
                raise _unfit(env_id, name, "a whole number from 1 on", value)
        elif name == "variable_scale":
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise _unfit(env_id, name, "a number", value)
        elif not isinstance(value, bool):
            raise _unfit(env_id, name, "true or false", value)
    return View(**view)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _unfit(env_id: str, name: str, expected: str, value: Any) -> ConfigError:
    return ConfigError(f"{env_id}: `{name}` in `env_kwargs` must be {expected}, got {value!r}")
