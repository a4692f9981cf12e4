"""Populations of several policies: members play matches, and weak ones continue from strong ones.

    RUN/
      population.json     the settings, and for each generation: matches, fitness, exploits
      members/0/          a training of several policies, with `policies/NAME` for each of them
      members/1/

Each member trains a policy of each name, side by side with the other members. After each generation
all policies play matches against those of other members. Then the policies of each name are ranked:
the worst quarter continues from the checkpoints of the best quarter, with changed options
(Jaderberg et al. 2017, "Population based training of neural networks").

A killed generation begins again, with the same results.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from hotloop.base import documents
from hotloop.base.files import atomic_write, sync
from hotloop.base.streams import notify
from hotloop.errors import ConfigError, RunDirectoryError
from hotloop.experiments.matches import Matches
from hotloop.experiments.population import (
    check_fixed_options,
    check_generation,
    check_space,
    mutate,
    schedule_parts,
)
from hotloop.experiments.spaces import Space, allows, data_check, draw
from hotloop.ops.ratings import elo_ratings
from hotloop.policies import ActingPolicy
from hotloop.runs import OnReport, RunDirectory
from hotloop.runs.new_directory import create_directory, default_name
from hotloop.runs.policies import POLICIES
from hotloop.training.options import to_json
from hotloop.training.policy_configs import PoliciesConfig, check_one_algorithm
from hotloop.training.several_policies import finished_steps, train_policies
from hotloop.training.sources import training_spec

if TYPE_CHECKING:
    from hotloop.training.algorithm import Algorithm

FILE, MEMBERS = "population.json", "members"
_MEMBERS_PER_EXPLOIT = 4  # the worst quarter of the members is replaced


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exploit:
    """A policy that continues from another member's.

    Attributes:
        policy: its name.
        member: its member.
        source: the member whose checkpoint it continues from.
        checkpoint: the name of this checkpoint.
        options: its new options.
    """

    policy: str
    member: int
    source: int
    checkpoint: str
    options: dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generation:
    """A generation of a population.

    Attributes:
        number: its number, from 1.
        timesteps: steps of agents of each member so far.
        fitness: mean return in the matches of each member, by policy.
        ratings: Elo ratings of the members, by policy, and half of the widths of their 95 %
            intervals. A policy wins a game in which its return is higher than the others'.
        options: options of each member with which it trained, by policy.
        exploits: changes after the generation.
        match_steps: steps of agents in all matches so far.
    """

    number: int
    timesteps: int
    fitness: dict[str, list[float]]
    ratings: dict[str, list[list[float]]]
    options: dict[str, list[dict[str, Any]]]
    exploits: list[Exploit]
    match_steps: int


class Population:
    """Trainings of several policies, whose policies meet in matches.

    Args:
        algorithm: an on-policy algorithm.
        config: the configuration of each member. `run_dir` is the population's.
        space: the options that differ between members, and their values.
        members: number of members, K.
        generations: number of generations, which divide `total_timesteps`.
        num_games: games of each match.
        replaces: whether weak members continue from strong ones. False trains the same members side
            by side, for comparison.
        env: see `Algorithm.train`.

    Raises:
        ConfigError: a setting is invalid.
    """

    def __init__(
        self,
        algorithm: Algorithm[Any],
        config: PoliciesConfig,
        space: Space,
        *,
        members: int = 8,
        generations: int = 8,
        num_games: int = 8,
        replaces: bool = True,
        env: str | Callable[..., Any] | None = None,
    ) -> None:
        if not config.has_policies:
            raise ConfigError("a population of several policies needs `policies`, got None")
        check_one_algorithm(algorithm, config)
        if members < 2 or generations < 1:
            raise ConfigError(
                "a population needs two members (`--trials 2`) and a generation "
                f"(`--generations 1`) or more, got {members} and {generations}"
            )
        check_space(space, config)
        check_generation(generations, config)
        check_fixed_options(config, space)
        self._algorithm, self._config, self._space = algorithm, config, space
        self._members, self._generations = members, generations
        self._num_games, self._replaces = num_games, replaces
        self._env = config.env_id if env is None else env
        base = default_name(training_spec(config, self._env).name, algorithm.name, "population")
        self.path = Path(config.run_dir or Path(config.runs_dir) / base)

    def train(
        self,
        on_generation: Callable[[Generation], None] = lambda _: None,
        on_report: OnReport | None = None,
    ) -> list[Generation]:
        """Train all generations, or those that an earlier process has not completed.

        Args:
            on_generation: called after each generation with its results.
            on_report: see `Algorithm.train`, of the member that trains.

        Returns:
            All generations.

        Raises:
            ConfigError: the directory has a population with other settings.
            RunDirectoryError: its file is damaged.
            KeyboardInterrupt: after the current member has written its last checkpoints.
        """
        spec = training_spec(self._config, self._env)
        assert self._config.policies is not None
        matches = Matches(spec, self._config.policies, self._num_games, self._config.eval_max_steps)
        try:
            self._names = list(matches.shares)
            done = self._open()
            self._check(done)
            options = self._first_options()
            if done:
                matches.num_steps = done[-1].match_steps
                options = self._options_after(done[-1])
                self._copy_checkpoints(done[-1])
            while len(done) < self._generations:
                number = len(done) + 1
                total = self._config.total_timesteps * number // self._generations
                for member in range(self._members):
                    self._train_member(member, options, total, on_report)
                done.append(self._compare(matches, number, total, options))
                self._write(done)
                options = self._options_after(done[-1])
                self._copy_checkpoints(done[-1])
                on_generation(done[-1])
        finally:
            matches.close()
        return done

    def best(self, generation: Generation) -> dict[str, Path]:
        """Return the run of the fittest member of each policy."""
        return {
            name: self._policy_dir(int(np.argmax(values)), name)
            for name, values in generation.fitness.items()
        }

    # --- files ------------------------------------------------------------------------------------

    def _open(self) -> list[Generation]:
        """Create the directory, or return the generations in it."""
        settings = {
            "algorithm": self._algorithm.reference,
            "config": to_json(dataclasses.replace(self._config, run_dir=None)),
            "space": {name: repr(domain) for name, domain in self._space.items()},
            "members": self._members,
            "generations": self._generations,
            "num_games": self._num_games,
            "replaces": self._replaces,
        }
        self._settings = json.loads(json.dumps(settings))
        if not self._file.exists():
            create_directory(self.path, may_rename=self._config.run_dir is None)
            self._write([])
            return []
        try:
            stored = documents.read(self._file)
            if not isinstance(stored, dict):
                raise ValueError("it is not an object")
            generations = [
                documents.record(Generation, value, where=f"log[{k}]")
                for k, value in enumerate(stored.pop("log", ()))
            ]
        except (OSError, ValueError, TypeError) as error:
            raise RunDirectoryError(
                f"{self._file} can't be read: {error}: start a new population"
            ) from error
        if stored != self._settings and not generations:
            self._write([])  # nothing has been trained, such as after a wrong option
        elif stored != self._settings:
            changed = [x for x in self._settings if stored.get(x) != self._settings[x]]
            raise ConfigError(
                f"{self.path} has a population with other settings ({', '.join(changed)}): pass "
                "another directory (`--file`), or the same settings to continue it"
            )
        return generations

    def _check(self, generations: Sequence[Generation]) -> None:
        """Check that stored generations fit the policies and the members.

        Raises:
            RunDirectoryError: they don't.
        """
        members, names = range(self._members), set(self._names)
        is_valid = all(
            generation.number == number
            and all(
                values.keys() == names and all(len(x) == self._members for x in values.values())
                for values in (generation.fitness, generation.ratings, generation.options)
            )
            and all(
                self._are_allowed(options)
                for values in generation.options.values()
                for options in values
            )
            and all(
                exploit.policy in names
                and exploit.member in members
                and exploit.source in members
                and re.fullmatch(r"step-\d+", exploit.checkpoint)
                and self._are_allowed(exploit.options)
                for exploit in generation.exploits
            )
            for number, generation in enumerate(generations, 1)
        )
        if not is_valid:
            raise RunDirectoryError(
                f"{self._file} does not fit its policies and members: start a new population"
            )

    def _are_allowed(self, options: dict[str, Any]) -> bool:
        """Return whether stored options are those of the space, and name no code."""
        is_data = data_check(type(self._config))
        return options.keys() == self._space.keys() and all(
            allows(self._space, name, value, is_data) for name, value in options.items()
        )

    def _write(self, generations: Sequence[Generation]) -> None:
        values = [dataclasses.asdict(generation) for generation in generations]
        document = documents.sealed({**self._settings, "log": values})
        with atomic_write(self._file, durable=True) as path:
            path.write_text(json.dumps(document), encoding="utf-8")

    @property
    def _file(self) -> Path:
        return self.path / FILE

    def _member_dir(self, member: int) -> Path:
        return self.path / MEMBERS / str(member)

    def _policy_dir(self, member: int, name: str) -> Path:
        return self._member_dir(member) / POLICIES / name

    # --- training ---------------------------------------------------------------------------------

    def _first_options(self) -> dict[str, list[dict[str, Any]]]:
        """Return random options of each member by policy."""
        members = range(self._members)
        return {
            name: [draw(self._space, self._config.seed, 1_000 * k + i) for i in members]
            for k, name in enumerate(self._names)
        }

    def _member_config(
        self, member: int, options: Mapping[str, Sequence[dict[str, Any]]], total: int
    ) -> PoliciesConfig:
        share = total / self._config.total_timesteps  # schedules continue in each generation
        all_options: dict[str, dict[str, Any]] = {}
        for name in self._names:
            own = self._config.policy_options.get(name, {})
            parts = schedule_parts(self._config, own, self._space, share)
            all_options[name] = {**own, **parts, **options[name][member]}
        seed = np.random.SeedSequence((self._config.seed, member)).generate_state(1)[0]
        return dataclasses.replace(
            self._config,
            policy_options=json.loads(json.dumps(all_options)),
            seed=int(seed),
            total_timesteps=total,
            # A killed generation begins again.
            checkpoint_interval=self._config.total_timesteps,
            keep_checkpoints=1,
            run_dir=str(self._member_dir(member)),
        )

    def _train_member(
        self,
        member: int,
        options: Mapping[str, Sequence[dict[str, Any]]],
        total: int,
        on_report: OnReport | None,
    ) -> None:
        """Train a member up to a number of steps, unless it has them."""
        config, folder = self._member_config(member, options, total), self._member_dir(member)
        resume_from = None
        if not self._has_checkpoints(member):
            shutil.rmtree(folder, ignore_errors=True)  # killed in its first generation
        elif finished_steps(RunDirectory.open(folder), config) is not None:
            return
        else:
            self._store_options(member, config)
            resume_from = folder
        train_policies(
            self._algorithm, config, env=self._env, on_report=on_report, resume_from=resume_from
        )

    def _has_checkpoints(self, member: int) -> bool:
        return all(
            any((self._policy_dir(member, name) / "checkpoints").glob("step-*"))
            for name in self._names
        )

    def _store_options(self, member: int, config: PoliciesConfig) -> None:
        """Write the options of the next generation into a member's directories."""
        stored = {self._member_dir(member): to_json(config)}
        for name in self._names:
            path = self._policy_dir(member, name)
            old = RunDirectory.open(path).config["config"]
            stored[path] = {**old, **config.policy_options[name]}
        for path, options in stored.items():
            run = RunDirectory.open(path)
            run.check_signature()  # before the new content gets one
            run.lock()
            try:
                run.replace_config(options)
            finally:
                run.close()

    # --- matches ----------------------------------------------------------------------------------

    def _compare(
        self,
        matches: Matches,
        number: int,
        total: int,
        options: dict[str, list[dict[str, Any]]],
    ) -> Generation:
        """Play all matches of a generation, and choose the members that are replaced."""
        policies = {
            name: [self._load(member, name) for member in range(self._members)]
            for name in self._names
        }
        num_matches = self._members**2
        results = matches.play_all(policies, number * num_matches)
        fitness = {
            name: [fmean(values) if values else float("-inf") for values in lists]
            for name, lists in results.returns.items()
        }
        num_games = self._num_games * num_matches
        num_ended = sum(map(len, next(iter(results.returns.values()))))
        if num_ended < num_games:
            notify(
                f"warning: {num_games - num_ended} of {num_games} games of the matches did not end "
                f"within {self._config.eval_max_steps:,} steps and don't count: raise "
                "`eval_max_steps`"
            )

        # Rate all policies.
        ratings, widths = elo_ratings(results.scores, results.games)
        rated: dict[str, list[list[float]]] = {name: [] for name in self._names}
        players = [name for name in self._names for _ in range(self._members)]
        for name, rating, width in zip(players, ratings, widths, strict=True):
            rated[name].append([round(float(rating), 1), round(float(width), 1)])

        # Choose the members that are replaced.
        exploits = []
        if self._replaces and number < self._generations:
            rng = np.random.default_rng([self._config.seed, number])
            for name in self._names:
                exploits += self._choose_exploits(name, fitness[name], options[name], rng)
        return Generation(
            number=number,
            timesteps=total,
            fitness=fitness,
            ratings=rated,
            options=options,
            exploits=exploits,
            match_steps=matches.num_steps,
        )

    def _load(self, member: int, name: str) -> ActingPolicy:
        run = RunDirectory.open(self._policy_dir(member, name))
        network, snapshot, _ = run.load_policy()
        return ActingPolicy(network, snapshot)

    def _choose_exploits(
        self,
        name: str,
        fitness: Sequence[float],
        options: Sequence[dict[str, Any]],
        rng: np.random.Generator,
    ) -> list[Exploit]:
        """Return the replacements of a policy's worst members, with mutated options."""
        order = [int(i) for i in np.argsort(fitness, kind="stable")]
        count = max(1, self._members // _MEMBERS_PER_EXPLOIT)
        exploits = []
        for member in order[:count]:
            source = order[-1 - int(rng.integers(count))]
            if not float("-inf") < fitness[member] < fitness[source]:
                continue  # nothing to gain, or no game of a match has ended
            mutated = {
                option: mutate(domain, options[source][option], rng)
                for option, domain in self._space.items()
            }
            last = self._policy_dir(member, name) / "checkpoints" / "last"
            exploits.append(
                Exploit(
                    policy=name,
                    member=member,
                    source=source,
                    checkpoint=last.resolve().name,
                    options=mutated,
                )
            )
        return exploits

    def _options_after(self, generation: Generation) -> dict[str, list[dict[str, Any]]]:
        options = {name: list(values) for name, values in generation.options.items()}
        for exploit in generation.exploits:
            options[exploit.policy][exploit.member] = exploit.options
        return options

    def _copy_checkpoints(self, generation: Generation) -> None:
        """Give each replaced policy the checkpoint of its source.

        After a kill this may repeat copies, unless a member of a copy has trained further.
        """
        for exploit in generation.exploits:
            target, source = (
                self._policy_dir(member, exploit.policy) / "checkpoints"
                for member in (exploit.member, exploit.source)
            )
            checkpoint = exploit.checkpoint
            has_advanced = (target / "last").resolve().name != checkpoint
            if has_advanced or not (source / checkpoint).is_dir():
                continue
            copy = target / f".{checkpoint}.copy"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(source / checkpoint, copy)
            shutil.rmtree(target / checkpoint, ignore_errors=True)  # a kill may have come after it
            copy.rename(target / checkpoint)
            sync(target)
