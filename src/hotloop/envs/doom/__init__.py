"""ViZDoom's scenarios with a small image and the game variables as observation.

Kempka et al. 2016, "ViZDoom: A Doom-based AI Research Platform for Visual Reinforcement Learning",
arXiv:1605.02097. Frame skip and image size are those of Sample Factory's experiments with Doom:
Petrenko et al. 2020, arXiv:2006.11751.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from hotloop.envs.doom.view import View
from hotloop.errors import ConfigError, nearest, requires_extra

_MODULE = "vizdoom"
# Settings of the game in `env_kwargs`, besides rewards, penalties and `render_…` settings.
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
_WRAPPER_OPTIONS = ("max_buttons_pressed", "scenario_config_file", "render_mode")
# Buffers that a scenario may enable, but that are not observed.
_BUFFERS = ("audio", "automap", "depth", "labels", "notifications")
# Scenarios that need other observations, and the kind of these.
_UNSUPPORTED_SCENARIOS = {"basic_audio.cfg": "sound", "basic_notifications.cfg": "text"}

# The weapon bobs by an amount that depends on the end of the last episode. Switch bobbing off, so
# that an episode is the same in every process.
_NO_WEAPON_BOB = "+movebob 0"


_VIEW_OPTIONS = tuple(field.name for field in fields(View))


def normalize_id(env: str) -> str:
    """Return an id without the module prefix of `vizdoom:VizdoomBasic-v1`."""
    return env.removeprefix(f"{_MODULE}:") if env.startswith(f"{_MODULE}:Vizdoom") else env


def find_scenario(name: str, registry: Mapping[str, Any]) -> Any:
    """Return Gymnasium's spec of one of ViZDoom's scenarios, None for other ids.

    An id without a version selects the latest.
    """
    versions = [
        spec for spec in registry.values() if name in (spec.id, spec.id.rpartition("-v")[0])
    ]
    spec = max(versions, key=lambda spec: spec.version or 0, default=None)
    package = f"{_MODULE}.gymnasium_wrapper."
    return spec if spec is not None and str(spec.entry_point).startswith(package) else None


def make_scenario(spec: Any, kwargs: Mapping[str, Any]) -> Any:
    """Return an environment of a scenario. Its game starts at the first reset.

    Args:
        spec: Gymnasium's spec of the id.
        kwargs: fields of `View`, ViZDoom's own `max_buttons_pressed` and `scenario_config_file`,
            and settings of the game with their names in .cfg files.

    Raises:
        ConfigError: an argument is invalid.
        MissingExtraError: ViZDoom or OpenCV is not installed.
    """
    with requires_extra(f"environment '{spec.id}' needs ViZDoom", "doom"):
        import vizdoom
    from hotloop.envs.doom.scenario import Scenario, render_resolution

    # Check the arguments.
    names = (name.removeprefix("set_") for name in dir(vizdoom.DoomGame) if name.startswith("set_"))
    settings = [
        name
        for name in names
        if name in _SETTINGS or name.startswith("render_") or name.endswith(("_reward", "_penalty"))
    ]
    for name in kwargs:
        if name not in (*_VIEW_OPTIONS, *_WRAPPER_OPTIONS, *settings):
            known = [*_VIEW_OPTIONS, *_WRAPPER_OPTIONS[:-1], *settings]
            raise ConfigError(
                f"{spec.id}: `env_kwargs` has no '{name}'"
                + (nearest(name, known) or f": there are {', '.join(known)}")
            )
    view = _parse_view(spec.id, {name: x for name, x in kwargs.items() if name in _VIEW_OPTIONS})
    config_file = kwargs.get("scenario_config_file", spec.kwargs.get("scenario_config_file"))
    if config_file in _UNSUPPORTED_SCENARIOS:
        raise ConfigError(
            f"{spec.id}: {_UNSUPPORTED_SCENARIOS[config_file]} is not observed: use VizdoomBasic-v1"
        )
    if kwargs.get("render_mode") not in (None, "rgb_array"):
        raise _option_error(spec.id, "render_mode", "'rgb_array'", kwargs["render_mode"])
    num_pressed = kwargs.get("max_buttons_pressed", 0)
    if num_pressed != 0 and not _is_count(num_pressed):
        raise _option_error(spec.id, "max_buttons_pressed", "a non-negative integer", num_pressed)
    game_settings = {name: value for name, value in kwargs.items() if name in settings}
    for name in game_settings:
        if not vizdoom.DoomGame().set_config({name: game_settings[name]}):
            raise ConfigError(
                f"{spec.id}: ViZDoom rejects {game_settings[name]!r} for `{name}`: use the "
                "format of its .cfg files"
            )
    # Compose the arguments of ViZDoom's environment.
    arguments = {name: x for name, x in kwargs.items() if name in _WRAPPER_OPTIONS}
    arguments |= game_settings | {f"{name}_buffer_enabled": False for name in _BUFFERS}
    arguments |= {"sound_enabled": False, "use_multi_binary_action_space": False}
    arguments["game_args"] = f"{_NO_WEAPON_BOB} {game_settings.get('game_args', '')}".strip()
    arguments["screen_format"] = "GRAY8" if view.grayscale else "RGB24"
    arguments.setdefault("screen_resolution", render_resolution(view.resolution))
    for name in arguments.keys() & _PATHS:
        arguments[name] = _find_file(spec.id, name, arguments[name], vizdoom.scenarios_path)
    return Scenario(spec, arguments, view)


def _find_file(env_id: str, name: str, path: Any, scenarios: str) -> str:
    """Return an absolute path, since games run in other directories, or raise ConfigError."""
    for folder in ("", scenarios):
        if os.path.isfile(file := os.path.join(folder, str(path))):
            return os.path.abspath(file)
    raise ConfigError(
        f"{env_id}: `{name}` in `env_kwargs` must be a file, but '{path}' is neither in the "
        "current directory nor among ViZDoom's scenarios: pass its absolute path"
    )


def _parse_view(env_id: str, options: Mapping[str, Any]) -> View:
    """Return a view from its options, or raise ConfigError."""
    view = dict(options)
    for name, value in options.items():
        if name == "resolution":
            is_pair = isinstance(value, (list, tuple)) and len(value) == 2
            if not is_pair or not all(_is_count(side) for side in value):
                raise _option_error(env_id, name, "[width, height] in pixels", value)
            view[name] = tuple(value)
        elif name == "frame_skip":
            if not _is_count(value):
                raise _option_error(env_id, name, "a positive integer", value)
        elif name == "variable_scale":
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise _option_error(env_id, name, "a number", value)
        elif not isinstance(value, bool):
            raise _option_error(env_id, name, "true or false", value)
    return View(**view)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _option_error(env_id: str, name: str, expected: str, value: Any) -> ConfigError:
    return ConfigError(f"{env_id}: `{name}` in `env_kwargs` must be {expected}, got {value!r}")
