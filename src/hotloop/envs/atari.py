"""Preprocessed Atari games: stacks of four 84 × 84 gray frames, several games side by side.

ALE's own vector environment steps the games in threads. For a single game, which can also be
filmed, Gymnasium's wrappers give byte-identical observations. The id determines sticky actions and
the length of an episode: `ALE/Pong-v5` repeats the last action with probability 0.25 (Machado et
al. 2018, arXiv:1709.06009), and plays 108,000 frames at most.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from hotloop.envs.spec import EnvSpec
from hotloop.errors import ConfigError, EnvironmentFailure, install_command

_PREFIX = "ALE/"
# Options in Gymnasium's spec of an id that also apply to the environments of this module.
_GAME_OPTIONS = ("repeat_action_probability", "full_action_space", "max_num_frames_per_episode")
# Defaults for ALE's vector environment. Rewards are raw, since reported returns are raw.
# `clip_reward` bounds the rewards of the updates.
_DEFAULTS: dict[str, Any] = {"frameskip": 4, "stack_num": 4, "reward_clipping": False}
_FIXED_OPTIONS = ("batch_size", "autoreset_mode", "num_envs", "game")
# The games that papers compare, which may be written without their prefix.
_NAMES = (
    "Alien Amidar Assault Asterix Asteroids Atlantis BankHeist BattleZone BeamRider Berzerk "
    "Bowling Boxing Breakout Centipede ChopperCommand CrazyClimber Defender DemonAttack DoubleDunk "
    "Enduro FishingDerby Freeway Frostbite Gopher Gravitar Hero IceHockey Jamesbond Kangaroo Krull "
    "KungFuMaster MontezumaRevenge MsPacman NameThisGame Phoenix Pitfall Pong PrivateEye Qbert "
    "Riverraid RoadRunner Robotank Seaquest Skiing Solaris SpaceInvaders StarGunner Surround "
    "Tennis TimePilot Tutankham UpNDown Venture VideoPinball WizardOfWor YarsRevenge Zaxxon"
)
_GAMES = {name.lower(): name for name in _NAMES.split()}


def is_preprocessed(spec: EnvSpec) -> bool:
    """Return whether an id and its arguments select a preprocessed game instead of a bare one.

    An id with a module prefix, `ale_py:ALE/Pong-v5`, or `obs_type` selects Gymnasium's bare game.
    """
    return spec.name.startswith(_PREFIX) and "obs_type" not in spec.env_kwargs


def namespace_hint(name: str) -> str:
    """Return the advice on a game without its prefix, `Pong-v5` or `PongNoFrameskip-v4`, or ""."""
    title = re.sub(r"(Deterministic|NoFrameskip)?(-v\d+)?$", "", name).lower()
    game = _GAMES.get(title)
    if game is None:
        return ""
    is_installed = importlib.util.find_spec("ale_py") is not None
    advice = "" if is_installed else f" It needs 'ale_py': {install_command('atari')}"
    return f"; did you mean '{_PREFIX}{game}-v5'?{advice}"


def make_games(spec: Any, num_envs: int, num_threads: int, kwargs: Mapping[str, Any]) -> Any:
    """Return N games side by side.

    Args:
        spec: Gymnasium's spec of the id.
        num_envs: N.
        num_threads: number of stepping threads, unless `kwargs` contain it.
        kwargs: arguments of ALE's `AtariVectorEnv`.

    Raises:
        ConfigError: the arguments are invalid.
        EnvironmentFailure: the game's ROM is missing.
    """
    for name in _FIXED_OPTIONS:
        if name in kwargs:
            raise ConfigError(f"{spec.id}: `{name}` is not an option of `env_kwargs`: leave it out")
    from ale_py import roms
    from ale_py.vector_env import AtariVectorEnv
    from gymnasium.vector import AutoresetMode

    class Games(AtariVectorEnv):
        """ALE's environments with masked resets and one seed per episode."""

        takes_seeds = True

        def __init__(self, life_loss_info: bool = False, **options: Any) -> None:
            super().__init__(life_loss_info=life_loss_info, **options)
            if life_loss_info:
                self.is_playing = lambda info: info["lives"] > 0  # False after the last life
            self.stack_num = options.get("stack_num", _DEFAULTS["stack_num"])
            # ALE accepts a reset mask, and then spends no step on a reset.
            self.metadata = {**self.metadata, "autoreset_mode": AutoresetMode.DISABLED}

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            if isinstance(seed, list):
                episode_seeds = [value for value in seed if value is not None]
                seed = np.array(episode_seeds, np.int64) % np.iinfo(np.int32).max
            return super().reset(seed=seed, options=options)

    game = spec.kwargs["game"]
    if roms.get_rom_path(game) is None:
        raise EnvironmentFailure(
            f"{spec.id}: the ROM of '{game}' is missing: reinstall ale-py, which contains it"
        )
    options = {name: value for name, value in spec.kwargs.items() if name in _GAME_OPTIONS}
    options |= {**_DEFAULTS, "num_threads": num_threads, **kwargs}
    return Games(game=game, num_envs=num_envs, **options)


def make_game(spec: Any, kwargs: Mapping[str, Any]) -> Any:
    """Return one game with the observations and actions of `make_games`, from Gymnasium's wrappers.

    Args:
        spec: Gymnasium's spec of the id.
        kwargs: the `kwargs` of `make_games`, and `render_mode`.
    """
    import gymnasium
    from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

    class FireAtReset(gymnasium.Wrapper[Any, Any, Any, Any]):
        """Presses the fire button at a reset, in games that wait for it."""

        def reset(self, **arguments: Any) -> Any:
            obs, info = super().reset(**arguments)
            unwrapped: Any = self.env.unwrapped
            if "FIRE" in unwrapped.get_action_meanings():
                obs, _, _, _, info = self.env.step(unwrapped.get_action_meanings().index("FIRE"))
            return obs, info

    settings = {**_DEFAULTS, **kwargs}
    options = {name: settings[name] for name in (*_GAME_OPTIONS, "render_mode") if name in settings}
    game = gymnasium.make(spec.id, frameskip=1, disable_env_checker=True, **options)
    if settings.get("use_fire_reset", True):
        game = FireAtReset(game)
    size = settings.get("img_width", 84), settings.get("img_height", 84)
    game = AtariPreprocessing(
        game,
        noop_max=settings.get("noop_max", 30),
        frame_skip=settings["frameskip"],
        screen_size=size,
        grayscale_obs=settings.get("grayscale", True),
    )
    return FrameStackObservation(game, settings["stack_num"], padding_type="zero")
