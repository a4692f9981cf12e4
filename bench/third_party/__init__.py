"""Train, evaluate and resume on environments of other packages.

    pip install gymnasium-robotics minigrid highway-env …    # the packages of `ENTRIES`
    python -m bench third-party                              # every package that is installed
    python -m bench third-party --names minigrid --store     # and write bench/results

Each entry trains PPO, in this process and with two workers, resumes the run, and evaluates it.
Environments with continuous actions also train SAC.
"""

from __future__ import annotations

from typing import NamedTuple

FACTORIES = "bench.third_party.factories"
RESULT = "third_party"


class Entry(NamedTuple):
    """An environment of another package.

    Attributes:
        package: the distribution that pip installs.
        env_id: the environment, as `--env-id`.
        has_box: whether actions are continuous, so that SAC trains, too.
        options: further options of all trainings.
        needs: what a user must do besides the installation.
        num_envs: number of environments, a multiple of twice the number of agents.
    """

    package: str
    env_id: str
    has_box: bool = False
    options: str = ""
    needs: str = ""
    num_envs: int = 4


ENTRIES = {
    "gymnasium-robotics": Entry(
        "gymnasium-robotics", "gymnasium_robotics:PointMaze_UMaze-v3", has_box=True
    ),
    "minigrid": Entry("minigrid", f"{FACTORIES}:minigrid", needs="a factory with `ImgObsWrapper`"),
    "highway-env": Entry("highway-env", "highway_env:highway-fast-v0"),
    "highway-env, goals": Entry("highway-env", "highway_env:parking-v0", has_box=True),
    "popgym": Entry("popgym", "popgym:popgym-RepeatPreviousEasy-v0", options="--memory lstm:32"),
    "PyFlyt": Entry("PyFlyt", "PyFlyt.gym_envs:PyFlyt/QuadX-Hover-v1", has_box=True),
    "bsuite": Entry("bsuite", f"{FACTORIES}:bsuite", needs="a factory with Shimmy's adapter"),
    "mo-gymnasium": Entry(
        "mo-gymnasium", f"{FACTORIES}:mo_gymnasium", needs="a factory with `LinearReward`"
    ),
    "flappy-bird": Entry("flappy-bird-gymnasium", "flappy_bird_gymnasium:FlappyBird-v0"),
    "gym-pusht": Entry("gym-pusht", "gym_pusht:gym_pusht/PushT-v0", has_box=True),
    "panda-gym": Entry("panda-gym", "panda_gym:PandaReach-v3", has_box=True),
    "MPE2": Entry("mpe2", "pettingzoo:mpe2.simple_spread_v3", num_envs=6),
    "SISL": Entry("pettingzoo", "pettingzoo:pettingzoo.sisl.pursuit_v5", num_envs=16),
    "Butterfly": Entry(
        "pettingzoo",
        "pettingzoo:pettingzoo.butterfly.knights_archers_zombies_v11",
        options='--env-kwargs {"max_cycles":100}',
        num_envs=8,
    ),
    "SuperSuit": Entry(
        "supersuit",
        f"{FACTORIES}:padded_tag",
        needs="a factory with `pad_observations_v0`",
        num_envs=8,
    ),
}
