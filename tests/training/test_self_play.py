"""Self-play: opponents from a pool of snapshots, ratings, and resuming with the pool."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest

import hotloop
from hotloop.algorithms import dqn, ppo
from hotloop.base import documents
from hotloop.envs import ActionSpec, EnvSpec, ObsField, ObsSpec
from hotloop.envs.game_factory import make_turn_games
from hotloop.envs.masks import with_masks
from hotloop.envs.turns import Turn
from hotloop.errors import (
    CheckpointError,
    ConfigError,
    EnvironmentFailure,
    UntrustedError,
)
from hotloop.policies import ActingPolicy, PolicySnapshot, actor_critic
from hotloop.reports.self_play import self_play_section
from hotloop.rollouts.evaluation import evaluate
from hotloop.runs import Checkpoint, RunDirectory
from hotloop.runs.checkpoints import Checkpoints
from hotloop.training.opponent_pool import OpponentPool
from hotloop.training.opponents import (
    FixedOpponent,
    RandomPlayer,
    ScriptedPlayer,
    check_opponent,
    make_player,
)
from hotloop.training.player_results import PlayerResults, StoredResults
from hotloop.training.trained_policy import make_opposed
from tests.toy_games import Nim

NIM = "tests.toy_games:Nim"
PERFECT = "tests.training.test_self_play:perfect"


def perfect(observation, mask, rng):
    """Leave a multiple of three, or move at random."""
    num_left = int(observation["observation"].argmax())
    return num_left % 3 - 1 if num_left % 3 else int(rng.integers(mask.sum()))


def first(observation, mask, rng):
    return 0


def broken(observation, mask, rng):
    raise KeyError("nothing")


def config(path, **options):
    defaults = {
        "env_id": NIM,
        "self_play": "prioritized",
        "self_play_interval": 128,
        "action_masks": True,
        "num_envs": 4,
        "num_steps": 16,
        "update_epochs": 2,
        "total_timesteps": 640,
        "hidden_sizes": (8,),
        "execution": "eager",
        "run_dir": str(path),
        "checkpoint_interval": 64,
    }
    return ppo.Config(**{**defaults, **options})


def train(path, **options):
    return ppo.algorithm.train(config(path, **options), progress=False)


def lines(path):
    text = (path / "metrics.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def snapshots_of(path):
    return {snapshot.name for snapshot in (path / "pool").glob("step-*")}


def make_pool(path, **options):
    """Return a pool of Nim's opponents, and a function that adds a snapshot to it."""
    pool = OpponentPool(config(path, **options), 0, path / "pool", Checkpoints(path / "saved"))
    envs = make_turn_games(EnvSpec(Nim, action_masks=True), 1, pool)
    pool.network = actor_critic(envs, hidden_sizes=(4,))
    parameters = pool.network.initial_parameters(0)
    return pool, lambda timesteps: pool.add(PolicySnapshot(0, parameters), timesteps)


def test_random_player_draws_each_column_of_a_hybrid_action():
    spec = ActionSpec.join(
        (
            ActionSpec(
                kind="box", shape=(2,), dtype="float32", low=(-0.5, 0.0), high=(0.5, math.inf)
            ),
            ActionSpec(kind="discrete", shape=(), dtype="int64", num_actions=3),
            ActionSpec(kind="multi_discrete", shape=(1,), dtype="int64", nvec=(2,), starts=(0,)),
        ),
        is_tuple=True,
    )
    spec = with_masks(spec)
    mask = np.array([True, False, True, False, True])
    turns = [Turn(0, "a", None, np.zeros(1), mask)] * 200
    actions = np.stack(RandomPlayer(spec).act(turns, np.random.default_rng(0)))
    assert actions.dtype == np.float32
    assert (set(actions[:, 0]), set(actions[:, 1])) == ({0.0, 2.0}, {1.0})
    low, high = actions[:, 2:].min(0), actions[:, 2:].max(0)
    np.testing.assert_allclose([low, high], [[-0.5, 0.0], [0.5, 1.0]], atol=0.05)


def test_random_player_draws_between_the_bounds():
    low, high = (-3.0, 100.0, -math.inf, 50.0, -1e300), (3.0, 101.0, -7.0, math.inf, math.inf)
    spec = ActionSpec(
        kind="box", shape=(5,), dtype="float32", low=low, high=high, space_dtype="float64"
    )
    turns = [Turn(0, "a", None, np.zeros(1), np.ones(0, np.bool_))] * 300
    actions = np.stack(RandomPlayer(spec).act(turns, np.random.default_rng(0)))
    ends = [actions.min(0), actions.max(0)]
    np.testing.assert_allclose(ends, [[-3, 100, -8, 50, -1], [3, 101, -7, 51, 1]], atol=0.1)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("self_play") / "run"
    train(path, opponents=("random", PERFECT))
    return path


def test_snapshots_are_frozen_at_the_interval_and_rated(run):
    snapshots = sorted(path.name for path in (run / "pool").glob("step-*"))
    assert snapshots == [f"step-{128 * k:012}" for k in range(6)]
    table = json.loads((run / "self_play.json").read_text())
    assert table["players"] == [*snapshots, "random", PERFECT]
    games, scores = np.array(table["games"]), np.array(table["scores"])
    assert (games == games.T).all()
    np.testing.assert_allclose(scores + scores.T, games)
    assert games[5, :5].sum() > 0
    last = lines(run)[-1]
    assert last["rating"] == table["ratings"][5]
    assert last["rating_interval"] == table["intervals"][5] > 0
    assert 0 <= last["score"] <= 1
    num_games = sum(len(line["episode_returns"]) for line in lines(run))
    assert games.sum() / 2 == num_games


@pytest.mark.parametrize(
    "options",
    [
        {"opponents": ("random", PERFECT)},
        {"self_play_pool": 2, "self_play_keep": 2, "self_play_epsilon": 0.3},
    ],
)
def test_an_interrupted_run_ends_with_the_same_weights(tmp_path, options):
    run, path = tmp_path / "whole", tmp_path / "run"
    train(run, **options)
    ppo.algorithm.train(
        config(path, **options), on_report=lambda report: report.timesteps >= 320, progress=False
    )
    copy = tmp_path / "copy"
    ppo.algorithm.train(config(copy, **options), resume_from=path, progress=False)
    ppo.algorithm.train(config(path, **options), resume_from=path, progress=False)
    whole = RunDirectory.open(run).checkpoints.load()
    for place in (path, copy):
        resumed = RunDirectory.open(place).checkpoints.load()
        for name, array in whole.snapshot.params.items():
            np.testing.assert_array_equal(resumed.snapshot.params[name], array)
        assert resumed.state["callbacks"] == whole.state["callbacks"]
        assert snapshots_of(place) >= set(whole.state["callbacks"]["SelfPlay"]["snapshots"])
        assert (place / "self_play.json").read_text() == (run / "self_play.json").read_text()


def test_a_rewound_run_replaces_later_snapshots(tmp_path):
    pool, add = make_pool(tmp_path)
    add(0)
    state = pool.state([], [])
    add(128)
    pool.load(state)
    later = PolicySnapshot(1, pool.network.initial_parameters(1))
    pool.add(later, 128)
    stored = Checkpoints(tmp_path / "pool").load("step-000000000128")
    for name, array in later.params.items():
        np.testing.assert_array_equal(stored.snapshot.params[name], array)


def test_old_snapshots_are_thinned_out_evenly(tmp_path):
    pool, add = make_pool(tmp_path, self_play_pool=3, self_play_keep=4)
    for k in range(21):
        add(100 * k)
    kept = [int(name.removeprefix("step-")) for name in pool.table()["players"]]
    assert len(kept) == 7
    assert kept[-3:] == [1800, 1900, 2000]
    assert kept[0] == 0
    gaps = np.diff(kept[:5])
    assert gaps.max() <= 2 * gaps.min()


def test_the_only_old_snapshot_beside_the_first_one_moves_along_with_the_run(tmp_path):
    pool, add = make_pool(tmp_path, self_play_pool=1, self_play_keep=2)
    for k in range(40):
        add(100 * k)
        if k >= 3:
            kept = [int(name.removeprefix("step-")) for name in pool.table()["players"]]
            assert kept[0] == 0
            assert kept[1] >= 100 * k / 2 - 100
    assert kept == [0, 3200, 3900]


def test_specs_that_differ_are_named_by_their_first_difference():
    part = ObsField(name="x", start=0, stop=2, shape=(2,), encoding="box")
    spec = ObsSpec(shape=(2,), dtype="float32", layout=(part,))
    other = dataclasses.replace(spec, layout=(dataclasses.replace(part, encoding="binary"),))
    game = SimpleNamespace(obs_spec=spec, action_spec=None)
    with pytest.raises(CheckpointError, match="whose `encoding` of 'x' is 'box', got 'binary'"):
        check_opponent("other", SimpleNamespace(obs_spec=other), game)


def test_files_of_removed_snapshots_stay_while_a_checkpoint_needs_them(tmp_path):
    pool, add = make_pool(tmp_path, self_play_pool=1, self_play_keep=1)
    saved = tmp_path / "saved"

    def save(timesteps):
        (saved / f"step-{timesteps:012}").mkdir(parents=True)
        (saved / f"step-{timesteps:012}" / "state.json").touch()

    for timesteps in (0, 100, 200):
        add(timesteps)
    assert pool.table()["players"] == ["step-000000000000", "step-000000000200"]
    assert "step-000000000100" in snapshots_of(tmp_path)  # there is no checkpoint
    save(150)
    add(300)  # removes 200
    assert len(snapshots_of(tmp_path)) == 4  # the checkpoint of 150 may draw that of 100
    state = pool.state([], [])
    (saved / "step-000000000150").rename(saved / "step-000000000250")
    add(400)  # removes 300
    later = ["step-000000000000", "step-000000000200", "step-000000000300", "step-000000000400"]
    assert sorted(snapshots_of(tmp_path)) == later
    pool.load(state)  # the run resumes, and removes the same once more
    add(400)
    assert sorted(snapshots_of(tmp_path)) == later


def test_an_opponent_in_a_running_game_is_not_removed(tmp_path):
    pool, add = make_pool(tmp_path, self_play_pool=1, self_play_keep=1)
    add(0)
    add(100)
    pool.begin(0, 0)
    assert pool.name(0) == "step-000000000100"
    for timesteps in (200, 300, 400):
        add(timesteps)
    names = [f"step-{timesteps:012}" for timesteps in (0, 100, 400)]
    assert pool.table()["players"] == names
    pool.end(0, 1.0)
    assert pool.table()["games"][1] == [0, 0, 0, 1]


def test_ratings_keep_what_removed_snapshots_have_shown():
    rng = np.random.default_rng(0)
    players = [str(k) for k in range(8)]
    games = [
        (players[k], players[j], float(rng.random() < 0.7)) for k in range(8) for j in range(k)
    ]
    whole, thinned = PlayerResults(), PlayerResults()
    for game in games:
        whole.add(*game)
        thinned.add(*game)
    rest = list(players)
    for player in "345":
        thinned.forget(player, rest)
        rest.remove(player)
    again = PlayerResults()
    stored = documents.record(StoredResults, json.loads(json.dumps(thinned.state())))
    again.load(stored, rest, "learner")
    expected, table = whole.table(players), again.table(rest)
    assert table["players"] == rest
    assert table == thinned.table(rest)
    for key in ("ratings", "intervals"):
        kept = [expected[key][int(player)] for player in rest]
        assert table[key] == pytest.approx(kept, abs=0.2)
    assert max(expected["ratings"]) > 300


def test_snapshots_move_at_random_with_probability_epsilon(tmp_path):
    name = "tests.training.test_self_play:first"
    pool, add = make_pool(tmp_path, self_play_epsilon=0.5, opponents=(name,))
    add(0)
    pool._players["step-000000000000"] = ScriptedPlayer(first, "0", pool.network.action_spec)
    turn = Turn(0, "first", None, np.zeros(8), np.array([True, True]))
    actions = {name: [], "step-000000000000": []}
    for game in range(2000):
        pool.begin(0, game)
        actions[pool.name(0)].append(int(pool.act([turn])[0]))
        pool.end(0, 0.5)
    assert set(actions[name]) == {0}
    moves = actions["step-000000000000"]
    assert np.mean(moves) == pytest.approx(0.25, abs=0.05)  # half of the random moves
    # Games with a random move do not count.
    table = pool.table()
    counts = dict(zip(table["players"], table["games"][-1], strict=True))
    assert counts[name] == len(actions[name])
    assert counts["step-000000000000"] == pytest.approx(len(moves) / 2, rel=0.15)


def test_a_snapshot_of_another_network_is_an_error(tmp_path):
    pool, add = make_pool(tmp_path)
    add(0)
    again, _ = make_pool(tmp_path)
    again.load(pool.state([], []))
    again.network = actor_critic(again.network, hidden_sizes=(5,))
    again.begin(0, 0)
    turn = Turn(0, "first", None, np.zeros(8), np.array([True, True]))
    with pytest.raises(CheckpointError, match="belong to another environment or another network"):
        again.act([turn])


def test_an_opponent_of_another_user_imports_no_code(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    envs = make_turn_games(EnvSpec(Nim, action_masks=True), 1, FixedOpponent("random", 0))
    network = actor_critic(envs, hidden_sizes=(4,))
    directory = RunDirectory.create(
        tmp_path / "run",
        runs_dir=tmp_path,
        env_id=NIM,
        algorithm="ppo",
        reference="ppo",
        seed=1,
        config={"seed": 1, "total_timesteps": 100},
        network="evil:Network",
    )
    directory.checkpoints.save(
        Checkpoint(
            network={**network.to_json(), "body": {"name": "evil:Network"}},
            snapshot=PolicySnapshot(0, network.initial_parameters(0)),
            arrays=dict,
            state={"timesteps": 64},
        )
    )
    directory.close()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other user"))
    path = str(tmp_path / "run")
    with pytest.raises(UntrustedError, match="'evil:Network': check it, and pass --trust"):
        make_player(path, envs, is_trusted=False)
    # A training has no option --trust.
    with pytest.raises(UntrustedError, match=r"'evil:Network': .*hotloop.load\(") as caught:
        make_pool(tmp_path, opponents=(path,))
    assert "--trust" not in str(caught.value)


def loaded(observation, mask, rng):
    return hotloop.load(loaded.run, trust=True).act(observation, action_mask=mask)


def test_a_run_may_be_loaded_in_a_function(run, tmp_path, monkeypatch):
    monkeypatch.setattr(loaded, "run", run, raising=False)
    train(tmp_path / "run", total_timesteps=64, opponents=(f"{__name__}:loaded",))


# Path within the state of self-play → a value that no run stores there.
HOSTILE = {
    (): [None, [], {}, {"snapshots": ["step-000000000000"]}],
    ("snapshots",): [[], ["../../x"], ["step-000000000064"], ["step-000000000000"] * 2, [1], "x"],
    ("removed",): [{"../../x": 0}, {"step-000000000000": "x"}, []],
    ("results",): [None, {}, []],
    ("results", "pairs"): [
        [["x", "random", 1, 1]],
        [["learner", "x", 1, 1]],
        [["learner", "random", 1, 2]],
        [["learner", "random", math.nan, 1]],
        [["learner", "random", math.inf, 1]],
        [[]],
    ],
    ("results", "known"): [["x"], ["random", "random"], ["random"], [[]]],
    ("results", "precision"): [[[1.0]], [[math.nan]], "x"],
    ("results", "shift"): [[1.0], [10**400], None],
    ("recent",): [{"x": [1, 1]}, {"random": [-1, 0]}, {"random": [0]}, {"random": 1}],
    ("games", 0): [[0, "x", [], False], [0, "random", [["x"]], False], [0, "random", []]],
    ("games", 0, 2): [[10**400], [math.nan], [{}], ["\x1b"], [None]],
    ("num_calls",): [-1, 1.5, 10**30, None],
    ("metrics",): [{"score": "x"}, [], None],
}


def checkpoints_of(run):
    return RunDirectory.open(run).checkpoints


def load_pool(run, state):
    options = config(run, opponents=("random", PERFECT))
    pool = OpponentPool(options, 0, run / "pool", checkpoints_of(run))
    pool.load(state)
    pool.attach(make_turn_games(EnvSpec(Nim, action_masks=True), 1, FixedOpponent("random", 0)))


@pytest.mark.parametrize("place", list(HOSTILE), ids=str)
def test_hostile_states_are_refused(run, place):
    whole = RunDirectory.open(run).checkpoints.load().state["callbacks"]["SelfPlay"]
    for value in HOSTILE[place]:
        state = copy.deepcopy(whole) if place else value
        holder = state
        for key in place[:-1]:
            holder = holder[key]
        if place:
            holder[place[-1]] = value
        with pytest.raises(CheckpointError, match="state of self-play has another format"):
            load_pool(run, state)


def test_evaluations_play_against_named_opponents(run):
    for opponent in (None, "random", PERFECT, str(run)):
        played = hotloop.evaluate(run, episodes=8, opponent=opponent)
        again = hotloop.evaluate(run, episodes=8, opponent=opponent)
        assert played.returns == again.returns
        assert played.info["score"] == [(x + 1) / 2 for x in played.returns]


def test_a_game_of_an_evaluation_depends_on_its_number_alone(run):
    def scores(num_games):
        network, snapshot, _ = RunDirectory.open(run).load_policy()
        spec = EnvSpec(Nim, action_masks=True, seed=3)
        envs = make_opposed(spec, num_games, None)
        policy = ActingPolicy(network, snapshot)
        episodes = evaluate(envs, policy, num_episodes=4 * num_games)
        return [episode.undiscounted_return for episode in episodes if episode.env == 0]

    assert scores(1) == scores(3)


def test_an_opponent_needs_the_spaces_of_the_game(run, tmp_path):
    train(tmp_path / "large", env_kwargs={"num_counters": 9}, total_timesteps=64)
    with pytest.raises(CheckpointError) as error:
        train(tmp_path / "run", opponents=(str(tmp_path / "large"),))
    assert str(error.value) == (
        f"the opponent {tmp_path / 'large'} must have the observations of this game, whose `shape` "
        "is (8,), got (10,): choose a run on this game with the same `action_masks`"
    )
    assert not (tmp_path / "run").exists()
    network, _, _ = RunDirectory.open(run).load_policy()
    recurrent = SimpleNamespace(
        obs_spec=network.obs_spec, action_spec=network.action_spec, memory_size=4
    )
    with pytest.raises(CheckpointError, match="must have no hidden states"):
        check_opponent("other", recurrent, network)


def test_a_broken_opponent_is_named():
    opponent = FixedOpponent("tests.training.test_self_play:broken", seed=0)
    envs = make_turn_games(EnvSpec(Nim, action_masks=True), 2, opponent)
    with pytest.raises(EnvironmentFailure, match=r"test_self_play:broken raised KeyError"):
        envs.reset(first_episode=0)


@pytest.mark.parametrize("action", [1.9, 2, -1, np.nan, 0])
def test_scripted_opponents_must_choose_an_allowed_action(action):
    envs = make_turn_games(EnvSpec(Nim, action_masks=True), 1, FixedOpponent("random", 0))
    player = ScriptedPlayer(lambda *_: action, "mine", envs.action_spec)
    turn = Turn(0, "first", None, np.zeros(8), np.array([False, True]))
    with pytest.raises(EnvironmentFailure, match="mine must return an allowed action"):
        player.act([turn], np.random.default_rng(0))
    player = ScriptedPlayer(lambda *_: 1, "mine", envs.action_spec)
    assert player.act([turn], np.random.default_rng(0)) == [1]


def test_scripted_opponents_without_masks_may_choose_every_action():
    envs = make_turn_games(EnvSpec(Nim), 1, FixedOpponent("random", 0))
    player = ScriptedPlayer(lambda observation, mask, rng: mask.sum() - 1, "mine", envs.action_spec)
    turn = Turn(0, "first", None, np.zeros(10), np.ones(0, np.bool_))
    assert player.act([turn], np.random.default_rng(0)) == [1]


def test_recurrent_networks_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="self-play does not support recurrent networks"):
        train(tmp_path / "run", memory="gru:4")


def test_random_opponents_draw_allowed_actions_uniformly():
    envs = make_turn_games(EnvSpec(Nim, action_masks=True), 1, FixedOpponent("random", 0))
    player, rng = make_player("random", envs), np.random.default_rng(0)
    envs.reset(first_episode=1)  # the opponent has moved
    turn = type("Turn", (), {"mask": np.array([True, True])})()
    actions = [int(player.act([turn], rng)[0]) for _ in range(400)]
    assert 160 < sum(actions) < 240
    turn.mask = np.array([False, True])
    assert [int(player.act([turn], rng)[0]) for _ in range(20)] == [1] * 20


def test_stronger_opponents_are_drawn_more_often(tmp_path):
    pool, _ = make_pool(tmp_path)
    pool._recent = {"weak": [9.0, 9.0], "strong": [9.0, 0.0]}
    # (1 − p)² with p = (score + ½) / (games + 1), and a tenth spread over all.
    weights = np.array([0.05**2, 0.95**2])
    expected = 0.1 / 2 + 0.9 * weights / weights.sum()
    np.testing.assert_allclose(pool._probabilities(["weak", "strong"]), expected)


def test_the_page_of_a_run_has_ratings_and_a_win_matrix(run, tmp_path):
    section = self_play_section(run)
    table = json.loads((run / "self_play.json").read_text())
    assert f"{table['ratings'][5]:.0f} ± {table['intervals'][5]:.0f}" in section
    assert f"{table['scores'][5][0] / table['games'][5][0]:.2f}" in section
    assert self_play_section(tmp_path) == ""
    (tmp_path / "self_play.json").write_text('{"players": ["a"], "ratings": []}')
    assert self_play_section(tmp_path) == ""


def test_dqn_learns_against_its_snapshots(tmp_path):
    dqn.algorithm.train(
        dqn.Config(
            env_id=NIM,
            self_play="uniform",
            self_play_interval=100,
            action_masks=True,
            num_envs=4,
            total_timesteps=400,
            learning_starts=100,
            batch_size=32,
            report_interval=50,
            hidden_sizes=(8,),
            execution="eager",
            run_dir=str(tmp_path / "run"),
        ),
        progress=False,
    )
    table = json.loads((tmp_path / "run" / "self_play.json").read_text())
    assert len(table["players"]) == 5
    assert np.array(table["games"])[4].sum() > 0


def test_results_are_written_at_the_end_of_a_run(tmp_path):
    train(tmp_path / "run", total_timesteps=64)
    table = json.loads((tmp_path / "run" / "self_play.json").read_text())
    assert table["players"] == ["step-000000000000", "learner"]
    num_games = sum(len(line["episode_returns"]) for line in lines(tmp_path / "run"))
    assert table["games"] == [[0, num_games], [num_games, 0]]
    assert num_games > 0


@pytest.mark.slow
def test_self_play_finds_the_winning_strategy(tmp_path):
    train(
        tmp_path / "run",
        total_timesteps=40_960,
        self_play_interval=4096,
        num_envs=16,
        num_steps=64,
        hidden_sizes=(32, 32),
        learning_rate=3e-3,
        env_kwargs={"num_counters": 8},
    )
    played = hotloop.evaluate(tmp_path / "run", episodes=200, opponent=PERFECT)
    starts = {True: [], False: []}
    for episode in played.episodes:
        starts[episode.info["seat"] == 0].append(episode.info["score"])
    # 8 or 7 counters: the first player wins with perfect play.
    assert np.mean(starts[True]) == 1
