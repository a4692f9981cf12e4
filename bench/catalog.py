"""Catalog of the benchmarks that `python -m bench` lists and runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from bench import cleanrl, install, readme, scaling, timing
from bench.accelerate import tables as accelerate
from bench.bandits import tables as bandits
from bench.matrix import tables as matrix
from bench.memory import doom
from bench.memory import learning as memory
from bench.memory import speed as memory_speed
from bench.profiler import tables as profiler
from bench.profiler.corpus import tables as corpus
from bench.replay import tables as replay
from bench.rollouts import tables as rollouts
from bench.runs import report
from bench.self_play import learning as self_play
from bench.self_play import populations
from bench.third_party import tables as third_party
from bench.train import (
    agents,
    asynchronous,
    discrete,
    games,
    lanes,
    limits,
    neighbours,
    offline,
    options,
    pixels,
    scores,
    start,
    sweeps,
)
from bench.train import tables as train
from bench.train.migration import migration_table


class Table(NamedTuple):
    """A table of a page.

    Attributes:
        page: path of the page, relative to the repository's root.
        place: name of the table's markers in the page.
        make: returns the table from stored results. It raises FileNotFoundError or returns an
            empty string if there are none.
    """

    page: str
    place: str
    make: Callable[[], str]


class Bench(NamedTuple):
    """A benchmark or a tool.

    Attributes:
        module: module with the benchmark's `main`.
        summary: purpose of the benchmark.
        takes: approximate duration with default options on two cores.
        runs: command-line options of each run in `python -m bench all`.
        tables: tables made from the results.
    """

    module: str
    summary: str
    takes: str
    runs: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()


README, SPEED, OFF_POLICY = "README.md", "docs/speed.md", "docs/off-policy.md"
PPO, APPO, SAC, TQC, CROSSQ, SAC_DISCRETE, TD3, TD3_BC, DQN = (
    f"docs/algorithms/{name}.md"
    for name in ("ppo", "appo", "sac", "tqc", "crossq", "sac_discrete", "td3", "td3_bc", "dqn")
)
REPLAY, BANDITS = "docs/replay-speed.md", "docs/bandit-speed.md"
PIXELS, ROLLOUTS = "docs/pixels.md", "docs/workers-speed.md"
PROFILER, RECORDING = "docs/profiler.md", "docs/profiler-recording.md"
CLUSTER, SELF_PLAY = "docs/cluster.md", "docs/self-play.md"
WORKERS = "docs/workers.md"
ACCELERATE, ACCELERATED = "docs/accelerate.md", ("ppo", "recurrent_ppo", "sac", "td3", "dqn")
PEER_CURVES = "--timesteps 100000 --seeds 5 --peer"
SHORT_CURVES = "--timesteps 6000 --seeds 5 --peer --execution eager"

BENCHES: dict[str, Bench] = {
    "list": Bench("bench.list", "this list", "a moment"),
    "all": Bench("bench.all", "run all benchmarks that the tables need, except corpus", "10 hours"),
    "tables": Bench(
        "bench.tables",
        "write the tables of the pages from bench/results",
        "a moment",
        tables=(
            *(
                Table(page, "options", partial(options.options_table, name))
                for page, name in (
                    (PPO, "ppo"),
                    (SAC, "sac"),
                    (TQC, "tqc"),
                    (CROSSQ, "crossq"),
                    (SAC_DISCRETE, "sac_discrete"),
                    (TD3, "td3"),
                    (TD3_BC, "td3_bc"),
                    (DQN, "dqn"),
                )
            ),
            Table(APPO, "options", partial(options.options_table, "appo", beside="ppo")),
            Table("docs/presets.md", "presets", options.presets_table),
            Table("docs/options.md", "requirements", options.requirements_table),
            Table("docs/options.md", "other names", options.other_names_table),
        ),
    ),
    "timing": Bench(
        "bench.timing",
        "overhead of one span, compared with other ways to time a scope",
        "1 min",
        runs=("",),
        tables=(Table("docs/timing.md", "timing table", timing.timing_table),),
    ),
    "train": Bench(
        "bench.train.speed",
        "speed of whole trainings, compared with Stable-Baselines3 and sbx",
        "3 to 20 min",
        runs=(
            "--env-id CartPole-v1",
            "--env-id CartPole-v1 --repeats 3 --execution auto --cold",
            "--env-id CartPole-v1 --repeats 2 --execution compile --cold",
            "--env-id HalfCheetah-v5 --timesteps 40960 --repeats 3",
            "--algorithm sac --against sb3 sbx",
            "--algorithm td3 --against sb3 sbx",
            "--algorithm dqn --against sb3 sbx",
            "--contender accelerated",
            "--contender accelerated --env-id HalfCheetah-v5 --timesteps 40960 --repeats 3",
            "--contender accelerated --algorithm recurrent_ppo --repeats 3",
            "--contender accelerated --algorithm sac --timesteps 20000",
            "--contender accelerated --algorithm sac --timesteps 20000 --precision bfloat16",
            "--contender accelerated --algorithm td3 --timesteps 20000",
            "--contender accelerated --algorithm dqn",
        ),
        tables=(
            Table(README, "readme table", readme.readme_table),
            Table(SPEED, "training table", train.training_table),
            Table(SPEED, "train-off-policy", train.speed_table),
            Table(PPO, "training table", train.training_table),
            Table(SAC, "train-sac", partial(train.speed_table, ("sac",))),
            Table(TD3, "train-td3", partial(train.speed_table, ("td3",))),
            Table(DQN, "train-dqn", partial(train.speed_table, ("dqn",))),
            Table(
                ACCELERATE,
                "accelerated-speed",
                partial(train.speed_table, ACCELERATED, "accelerated"),
            ),
        ),
    ),
    "curves": Bench(
        "bench.train.curves",
        "learning curves over seeds, compared with Stable-Baselines3",
        "10 min to hours",
        runs=(
            "--env-id HalfCheetah-v5 --timesteps 200000 --seeds 20",
            f"--algorithm sac {PEER_CURVES}",
            f"--algorithm tqc {SHORT_CURVES}",
            f"--algorithm crossq {SHORT_CURVES}",
            f"--algorithm td3 {PEER_CURVES}",
            "--algorithm dqn --timesteps 50000 --seeds 5 --peer",
            "--contender accelerated --timesteps 102400 --seeds 5",
            "--contender accelerated --algorithm dqn --timesteps 50000 --seeds 5 --peer",
            "--contender accelerated --env-id HalfCheetah-v5 --timesteps 200000 --seeds 5",
        ),
        tables=(
            Table(PPO, "curves table", train.curves_table),
            Table(SAC, "learning-sac", partial(train.curves_table, ("sac",))),
            Table(TQC, "learning-tqc", partial(train.curves_table, ("tqc",))),
            Table(CROSSQ, "learning-crossq", partial(train.curves_table, ("crossq",))),
            *(
                Table(
                    f"docs/from-{peer.replace('_', '-')}.md",
                    "curves table",
                    partial(migration_table, peer),
                )
                for peer in ("sample_factory", "pufferlib", "rllib", "tianshou")
            ),
            Table(
                ACCELERATE,
                "accelerated-curves",
                partial(train.curves_table, ACCELERATED, "accelerated"),
            ),
        ),
    ),
    "cleanrl": Bench(
        "bench.cleanrl",
        "scripts in CleanRL's style, with and without hotloop's replay and updates",
        "15 min",
        runs=("",),
        tables=(
            Table("docs/from-cleanrl.md", "cleanrl speed", cleanrl.speed_table),
            *(
                Table(
                    "docs/from-cleanrl.md", f"{name} difference", partial(cleanrl.difference, name)
                )
                for name in cleanrl.TIMESTEPS
            ),
        ),
    ),
    "self-play": Bench(
        "bench.self_play.learning",
        "self-play: steps until tic-tac-toe is never lost, games won in connect four",
        "40 min",
        runs=("",),
        tables=(
            Table(SELF_PLAY, "tictactoe", self_play.tictactoe_table),
            Table(SELF_PLAY, "connect four", self_play.connect_four_table),
        ),
    ),
    "populations": Bench(
        "bench.self_play.populations",
        "population-based training of two teams, beside the same members without exploits",
        "15 min",
        runs=("",),
        tables=(
            Table("docs/several-policies.md", "populations table", populations.populations_table),
        ),
    ),
    "scores": Bench(
        "bench.train.scores",
        "scores of all presets over ten seeds, beside published ones",
        "10 hours",
        runs=("",),
        tables=(
            Table("docs/scores.md", "scores table", scores.scores_table),
            Table(PPO, "scores-ppo", partial(scores.scores_table, "ppo")),
            Table(SAC, "scores-sac", partial(scores.scores_table, "sac")),
            Table(TQC, "scores-tqc", partial(scores.scores_table, "tqc")),
            Table(CROSSQ, "scores-crossq", partial(scores.scores_table, "crossq")),
            Table(
                SAC_DISCRETE, "scores-sac_discrete", partial(scores.scores_table, "sac_discrete")
            ),
            Table(TD3, "scores-td3", partial(scores.scores_table, "td3")),
            Table(DQN, "scores-dqn", partial(scores.scores_table, "dqn")),
        ),
    ),
    "offline": Bench(
        "bench.train.offline",
        "learning from a data set: cloning, TD3+BC, SAC with recorded steps",
        "10 min",
        runs=("",),
        tables=(
            Table("docs/offline.md", "offline table", offline.offline_table),
            Table(TD3_BC, "offline table", offline.offline_table),
        ),
    ),
    "games": Bench(
        "bench.train.games",
        "PPO with one policy for the agents of MPE's simple_spread; needs mpe2",
        "15 min",
        tables=(Table("docs/pettingzoo.md", "games table", games.games_table),),
    ),
    "agents": Bench(
        "bench.train.agents",
        "collecting with one policy for the agents of a game, beside single environments",
        "1 min",
        runs=("",),
        tables=(Table("docs/pettingzoo.md", "agents table", agents.agents_table),),
    ),
    "discrete": Bench(
        "bench.train.discrete",
        "learning of DQN with its options, and of discrete SAC, on CartPole-v1",
        "30 min",
        runs=("",),
        tables=tuple(
            Table(page, "discrete learning", discrete.discrete_table)
            for page in (DQN, SAC_DISCRETE)
        ),
    ),
    "pixels": Bench(
        "bench.train.pixels",
        "PPO on Pong, compared with Stable-Baselines3, and replay of frames",
        "10 min",
        runs=("",),
        tables=(
            Table(PIXELS, "pixels table", pixels.pixels_table),
            Table(PIXELS, "pixels replay", pixels.replay_table),
        ),
    ),
    "memory": Bench(
        "bench.memory.compare",
        "recurrent networks: learning with and without hidden state, speed",
        "1 hour",
        runs=("",),
        tables=(
            Table("docs/memory.md", "memory learning", memory.learning_table),
            Table("docs/memory.md", "memory scale", memory.scale_table),
            Table("docs/memory.md", "memory speed", memory_speed.speed_table),
            Table("docs/memory.md", "memory doom", doom.doom_table),
        ),
    ),
    "accelerate": Bench(
        "bench.accelerate.stages",
        "one GPU: correctness (--stage check) and speed (--stage measure), beside LeanRL",
        "4 and 8 min",
        tables=tuple(
            Table("docs/gpu-measure.md", f"accelerate {part}", partial(accelerate.page_table, part))
            for part in accelerate.TABLES
        ),
    ),
    "start": Bench(
        "bench.train.start",
        "time from the prompt to the end of a short training, by stage",
        "2 min",
        runs=("",),
        tables=(Table("docs/runs.md", "start table", start.start_table),),
    ),
    "install": Bench(
        "bench.install",
        "size and time of installation and first training",
        "5 min",
        runs=("",),
        tables=(Table(SPEED, "install table", install.install_table),),
    ),
    "report": Bench(
        "bench.runs.report",
        "time to report a run of 10,000,000 steps",
        "2 min",
        runs=("",),
        tables=(Table("docs/runs.md", "report table", report.report_table),),
    ),
    "replay": Bench(
        "bench.replay.compare",
        "replay buffers, compared with other libraries and O(N) sampling",
        "40 min",
        runs=("",),
        tables=(
            Table(REPLAY, "seed probability", partial(replay.post_table, "probability")),
            Table(REPLAY, "seed sampling", partial(replay.post_table, "sampling")),
            Table(REPLAY, "seed total", partial(replay.post_table, "total")),
            Table(REPLAY, "replay peers", replay.peers_table),
            Table(REPLAY, "replay loop", replay.loop_table),
            Table(REPLAY, "replay share", replay.share_table),
            Table(REPLAY, "replay small", replay.small_table),
            Table(REPLAY, "replay start", replay.start_table),
            Table(SPEED, "replay short", replay.short_table),
        ),
    ),
    "replay-share": Bench(
        "bench.replay.share",
        "share of a SAC training that sampling from a full buffer takes",
        "5 min",
        runs=("",),
        tables=(Table(OFF_POLICY, "replay-share-sac", replay.share_sac_table),),
    ),
    "replay-learning": Bench(
        "bench.replay.learning",
        "learning with replay by returns or priorities, compared with uniform replay",
        "20 min",
        runs=("",),
        tables=(Table(OFF_POLICY, "replay-learning", replay.learning_table),),
    ),
    "rollouts": Bench(
        "bench.rollouts.compare",
        "rollout workers, compared with lock-step vector environments",
        "2 hours",
        runs=("",),
        tables=(
            Table(ROLLOUTS, "workers steps", partial(rollouts.lockstep_table, "steps")),
            Table(ROLLOUTS, "workers resets", partial(rollouts.lockstep_table, "resets")),
            Table(ROLLOUTS, "workers diagnostic", rollouts.diagnostic_table),
            Table(ROLLOUTS, "workers curves", rollouts.curves_table),
            Table(ROLLOUTS, "workers cheap", rollouts.cheap_table),
            Table(ROLLOUTS, "workers overhead", rollouts.overhead_table),
            Table(ROLLOUTS, "workers start", rollouts.start_table),
            Table(ROLLOUTS, "workers ppo", rollouts.ppo_table),
            Table(ROLLOUTS, "workers auto", rollouts.auto_table),
            Table(WORKERS, "workers central", rollouts.central_table),
            Table(CLUSTER, "cluster plan", rollouts.plan_table),
            Table(CLUSTER, "cluster ray", rollouts.ray_table),
            Table(CLUSTER, "cluster costs", rollouts.ray_costs_table),
        ),
    ),
    "bandit": Bench(
        "bench.bandits.compare",
        "bandits: a blog post's program, its fixes, other libraries and hotloop",
        "15 min",
        runs=("",),
        tables=(
            Table(BANDITS, "bandit story", bandits.story_table),
            Table(BANDITS, "bandit speed", bandits.speed_table),
            Table(BANDITS, "bandit scaling", bandits.scaling_table),
            Table(BANDITS, "bandit start", bandits.start_table),
            Table(BANDITS, "bandit memory", bandits.memory_table),
            Table(BANDITS, "bandit grid", bandits.grid_table),
            Table(BANDITS, "bandit exercise", bandits.exercise_table),
            Table(SPEED, "bandit short", bandits.short_table),
        ),
    ),
    "profiler": Bench(
        "bench.profiler.measure",
        "diagnoses of the slow examples, and the profiler's overhead",
        "50 min",
        runs=("",),
        tables=(
            Table(PROFILER, "examples table", profiler.examples_table),
            Table(RECORDING, "cost table", profiler.cost_table),
            Table(RECORDING, "report table", profiler.report_table),
            Table(RECORDING, "stages table", profiler.stages_table),
        ),
    ),
    # Not part of `all`: reading the results of the held-out half makes it known.
    "corpus": Bench(
        "bench.profiler.corpus.run",
        "diagnoses of programs that no rule was tuned on",
        "40 min",
        tables=(
            Table(PROFILER, "corpus table", corpus.corpus_table),
            Table(PROFILER, "corpus misses table", corpus.misses_table),
            Table(PROFILER, "corpus alarms table", corpus.alarms_table),
        ),
    ),
    "scaling": Bench(
        "bench.scaling",
        "cost of each part over its size: environments, workers, replay, networks, batches, seeds",
        "25 min",
        runs=("",),
        tables=tuple(
            Table("docs/scaling.md", f"scaling {part}", partial(scaling.scaling_table, part))
            for part in scaling.PARTS
        ),
    ),
    "lanes": Bench(
        "bench.train.lanes",
        "several seeds: one after another, two at a time, vectorized in one update",
        "10 min",
        runs=("",),
        tables=(Table("docs/seeds.md", "lanes table", lanes.lanes_table),),
    ),
    "sweep": Bench(
        "bench.train.sweeps",
        "forty trials over processes and lanes, compared with Optuna and Ray Tune",
        "40 min",
        runs=("",),
        tables=(Table("docs/sweeps.md", "sweep table", sweeps.sweep_table),),
    ),
    "asynchronous": Bench(
        "bench.train.asynchronous",
        "APPO: learning from old experience, and throughput",
        "1 hour",
        runs=("",),
        tables=(
            Table(APPO, "asynchronous learning", asynchronous.learning_table),
            Table(APPO, "asynchronous throughput", asynchronous.throughput_table),
        ),
    ),
    "neighbours": Bench(
        "bench.train.neighbours",
        "concurrent trainings by number of torch threads",
        "15 min",
        runs=("",),
        tables=(Table(OFF_POLICY, "neighbours", neighbours.neighbours_table),),
    ),
    "before": Bench("bench.train.before", "speed compared with an earlier checkout", "10 min"),
    "weights": Bench(
        "bench.train.weights", "bitwise comparison of final weights with stored ones", "5 min"
    ),
    "checkpoints": Bench(
        "bench.train.checkpoints", "time to verify and to save a checkpoint", "1 min"
    ),
    "matrix": Bench(
        "bench.matrix.run",
        "checks on every supported version of Python, torch, NumPy and Gymnasium",
        "1 hour",
        tables=(
            Table("docs/versions.md", "versions cells", matrix.cells_table),
            Table("docs/versions.md", "versions checks", matrix.checks_table),
        ),
    ),
    "third-party": Bench(
        "bench.third_party.run",
        "trainings, evaluations and resumed runs on environments of other packages",
        "10 min",
        tables=(Table("docs/environments.md", "third party", third_party.environments_table),),
    ),
    "imports": Bench("bench.train.imports", "import time, and whether torch is imported", "1 min"),
    "step-budget": Bench(
        "bench.train.step_budget", "CPU time of storing a step and of an empty launch", "1 min"
    ),
    "limits": Bench(
        "bench.train.limits",
        "matrix products alone, beside the whole update of SAC and TD3",
        "4 min",
        runs=("",),
        tables=(Table(OFF_POLICY, "limits", limits.limits_table),),
    ),
    "tanh": Bench("bench.train.tanh", "coefficients of the compiled tanh", "1 min"),
}
