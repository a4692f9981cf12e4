"""Atari games as agents see them: four frames of 84 × 84 grey bytes, several games side by side.

ALE's own vector environment steps them in threads, and Gymnasium's wrappers make the same of one
game, to the last byte, which can also be filmed. Sticky actions and the longest episode are the
id's: `ALE/Pong-v5` repeats the last action with probability 0.25 (Machado et al. 2018,
arXiv:1709.06009), and plays 108,000 frames at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hotloop.errors import ConfigError, EnvironmentFailure

_PREFIX = "ALE/"
# What the games' ids say of Gymnasium's own environment, and not of what is made here.
_GAME_OPTIONS = ("repeat_action_probability", "full_action_space", "max_num_frames_per_episode")
# Of ALE's vector environment, unless told otherwise. Rewards are raw, since what is reported is;
# `clip_reward` bounds what is learned from.
_DEFAULTS: dict[str, Any] = {"frameskip": 4, "stack_num": 4, "reward_clipping": False}
_OWN = ("batch_size", "autoreset_mode", "num_envs", "game")


def is_preprocessed(env: object, kwargs: Mapping[str, Any]) -> bool:
    """Return whether an id and its arguments mean what is made here, and not a bare game.

    The id with a module before it, `ale_py:ALE/Pong-v5`, and `obs_type` mean Gymnasium's own.
    """
    return isinstance(env, str) and env.startswith(_PREFIX) and "obs_type" not in kwargs


def make_games(spec: Any, num_envs: int, num_threads: int, kwargs: Mapping[str, Any]) -> Any:
    """Return N games side by side.

    Args:
        spec: Gymnasium's, of the id.
        num_envs: N.
        num_threads: that step them, where `kwargs` do not say.
        kwargs: of ALE's `AtariVectorEnv`.

    Raises:
        ConfigError: the arguments do not fit.
        EnvironmentFailure: the game's ROM is not there.
    """
    for name in _OWN:
        if name in kwargs:
            raise ConfigError(f"{spec.id}: `{name}` is not one of `env_kwargs`: leave it out")
    from ale_py import roms
    from ale_py.vector_env import AtariVectorEnv
    from gymnasium.vector import AutoresetMode

    class Games(AtariVectorEnv):
        """ALE's environments, each reset where we say, from the seed that we say."""

        takes_seeds = True

        def __init__(self, life_loss_info: bool = False, **options: Any) -> None:
            super().__init__(life_loss_info=life_loss_info, **options)
            if life_loss_info:
                self.goes_on = lambda info: info["lives"] > 0  # a game, at the loss of a life
            self.stack_num = options.get("stack_num", _DEFAULTS["stack_num"])
            # It takes a mask, and then spends no step of its own on a reset.
            self.metadata = {**self.metadata, "autoreset_mode": AutoresetMode.DISABLED}

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            if isinstance(seed, list):
                given = [one for one in seed if one is not None]
                seed = np.array(given, np.int64) % np.iinfo(np.int32).max
            return super().reset(seed=seed, options=options)

    game = spec.kwargs["game"]
    if roms.get_rom_path(game) is None:
        raise EnvironmentFailure(
            f"{spec.id}: the ROM of '{game}' is not there: it comes with ale-py, install that again"
        )
    options = {name: x for name, x in spec.kwargs.items() if name in _GAME_OPTIONS}
    options |= {**_DEFAULTS, "num_threads": num_threads, **kwargs}
    return Games(game=game, num_envs=num_envs, **options)


def make_game(spec: Any, kwargs: Mapping[str, Any]) -> Any:
    """Return one game, of Gymnasium's wrappers, that observes and acts as `make_games` has it.

    Args:
        spec: Gymnasium's, of the id.
        kwargs: as `make_games` takes them, and `render_mode`.
    """
    import gymnasium
    from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

    class FireAtReset(gymnasium.Wrapper[Any, Any, Any, Any]):
        """Begins an episode where the game waits for the button."""

        def reset(self, **arguments: Any) -> Any:
            obs, info = super().reset(**arguments)
            unwrapped: Any = self.env.unwrapped
            if "FIRE" in unwrapped.get_action_meanings():
                obs, _, _, _, info = self.env.step(unwrapped.get_action_meanings().index("FIRE"))
            return obs, info

    given = {**_DEFAULTS, **kwargs}
    options = {name: given[name] for name in (*_GAME_OPTIONS, "render_mode") if name in given}
    game = gymnasium.make(spec.id, frameskip=1, disable_env_checker=True, **options)
    if given.get("use_fire_reset", True):
        game = FireAtReset(game)
    sides = given.get("img_width", 84), given.get("img_height", 84)
    game = AtariPreprocessing(
        game,
        noop_max=given.get("noop_max", 30),
        frame_skip=given["frameskip"],
        screen_size=sides,
        grayscale_obs=given.get("grayscale", True),
    )
    return FrameStackObservation(game, given["stack_num"], padding_type="zero")
