import dataclasses
import json
import os
import resource
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from hotloop.base import documents
from hotloop.base.crowding import Crowding
from hotloop.base.signals import delayed_interrupt
from hotloop.errors import ConfigError, RunDirectoryError
from hotloop.runs import RunDirectory
from hotloop.runs.episodes import episodes_from_metrics
from hotloop.runs.learning_curve import learning_curve


@dataclasses.dataclass
class DirectoryConfig:
    seed: int = 3
    total_timesteps: int = 100


def create(tmp_path, path=None):
    return RunDirectory.create(
        path,
        runs_dir=tmp_path,
        env_id="ALE/Pong v5",
        algorithm="ppo",
        reference="ppo",
        seed=3,
        config=dataclasses.asdict(DirectoryConfig()),
    )


def test_names_never_collide_and_are_plain(tmp_path):
    first, second = create(tmp_path), create(tmp_path)
    assert first.path != second.path
    assert first.path.parent == second.path.parent == tmp_path
    assert first.path.name.startswith("ALE-Pong-v5__ppo__3__")
    assert first.config["config"] == {"seed": 3, "total_timesteps": 100}
    assert first.config["versions"]["numpy"] == np.__version__


def test_an_existing_directory_is_left_alone(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("precious")
    with pytest.raises(RunDirectoryError, match="it exists: pass another --run-dir"):
        create(tmp_path, tmp_path / "mine")
    assert os.listdir(tmp_path / "mine") == ["file"]


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirectoryError, match="can't be created"):
        create(tmp_path, tmp_path / "file" / "run")


def test_runs_of_the_same_second_get_different_paths(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        paths = list(pool.map(lambda _: create(tmp_path).path, range(16)))
    assert len(set(paths)) == 16


@pytest.mark.parametrize("text", ["{}", "[", '"text"'])
def test_a_damaged_configuration_is_named(tmp_path, text):
    run = create(tmp_path)
    (run.path / "config.json").write_text(text)
    with pytest.raises(RunDirectoryError, match=r"config.json is damaged"):
        RunDirectory.open(run.path)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("num_envs", 0),
        ("num_envs", -(2**40)),
        ("seed", -1),
        ("log_info", 5),
        ("log_info", ["is_success", {"a": 1}]),
        ("policies", ["a:b"]),
        ("policies", {"a": "b"}),
        ("self_play", True),
        ("action_masks", "no"),
    ],
)
def test_options_that_commands_read_are_checked(tmp_path, option, value):
    run = create(tmp_path)
    content = json.loads((run.path / "config.json").read_text())
    content["config"][option] = value
    (run.path / "config.json").write_text(json.dumps(content))
    with pytest.raises(RunDirectoryError, match=rf"config.json is damaged \(.*config.{option}`?"):
        RunDirectory.open(run.path)


@pytest.mark.parametrize("name", ["algorithm", "env_id", "network"])
def test_names_that_fill_messages_count_as_damage(tmp_path, name):
    run = create(tmp_path)
    content = json.loads((run.path / "config.json").read_text())
    (run.path / "config.json").write_text(json.dumps({**content, name: "x" * 100_000}))
    with pytest.raises(RunDirectoryError, match=f"`{name}` must have at most 1,000 characters"):
        RunDirectory.open(run.path)


def test_names_with_terminal_escapes_count_as_damage(tmp_path):
    run = create(tmp_path)
    content = json.loads((run.path / "config.json").read_text())
    halved = {**content, "config": {**content["config"], "schedule": "\ud800"}}
    (run.path / "config.json").write_text(json.dumps(halved))
    with pytest.raises(RunDirectoryError, match="invalid Unicode character"):
        RunDirectory.open(run.path)
    (run.path / "config.json").write_text(json.dumps({**content, "env_id": "\x1b[2J"}))
    with pytest.raises(RunDirectoryError, match="`env_id` must have printable characters only"):
        RunDirectory.open(run.path)


def test_open_requires_a_run(tmp_path):
    create(tmp_path, tmp_path / "good_run")
    with pytest.raises(RunDirectoryError, match=r"did you mean '.*good_run'"):
        RunDirectory.open(tmp_path / "goodrun")
    assert RunDirectory.open(tmp_path / "good_run").config["algorithm"] == "ppo"


def test_metrics_survive_a_cut_last_line(tmp_path):
    run = create(tmp_path)
    run.log({"iteration": 1, "timesteps": 1, "loss": float("nan"), "episode_returns": [1.0, 2.0]})
    run.log({"iteration": 2, "timesteps": 2, "loss": 0.5, "episode_returns": [4.0]})
    with open(
        run.path / "metrics.jsonl", "a"
    ) as file:  # before `close`, since every line is on disk already
        file.write('{"timesteps": 3, "episode_ret')
    assert run.metrics() == [
        {"iteration": 1, "timesteps": 1, "loss": None, "episode_returns": [1.0, 2.0]},
        {"iteration": 2, "timesteps": 2, "loss": 0.5, "episode_returns": [4.0]},
    ]
    steps, returns = episodes_from_metrics(run.metrics())
    assert steps.tolist() == [1, 1, 2]
    assert returns.tolist() == [1.0, 2.0, 4.0]
    run.close()


def test_a_damaged_line_of_metrics_is_named(tmp_path):
    run = create(tmp_path)
    run.log({"iteration": 1, "timesteps": 1, "episode_returns": []})
    run.close()
    with open(run.path / "metrics.jsonl", "a") as file:
        file.write("no json\n")
    with pytest.raises(RunDirectoryError, match=r"is damaged in line 2 .*: restore the file"):
        run.metrics()
    line = json.dumps({"iteration": 1, "timesteps": 1, "episode_returns": []}) + "\n"
    (run.path / "metrics.jsonl").write_text(2 * line)
    with pytest.raises(RunDirectoryError, match=r"line 2 \(`iteration` must be 2, got 1"):
        run.metrics()


@pytest.mark.parametrize(
    "changed",
    [{"timesteps": -5}, {"timesteps": 10**18}, {"iteration": 0}]
    + [{"evaluation": {"mean_return": 1.0, "std_return": "x"}}]
    + [{"elapsed_s": x} for x in (-1.0, float("inf"), float("nan"))],
)
def test_impossible_numbers_are_damage(tmp_path, changed):
    run = create(tmp_path)
    run.close()
    line = {"iteration": 1, "timesteps": 1, "episode_returns": [], **changed}
    (run.path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises(RunDirectoryError, match=r"is damaged in line 1 \(`"):
        run.metrics()


@pytest.mark.parametrize("num_episodes", [0, 3])
def test_learning_curve_is_a_picture(tmp_path, num_episodes):
    run = create(tmp_path)
    run.log({"iteration": 1, "timesteps": 1, "episode_returns": [1.0] * num_episodes})
    path = learning_curve(run)
    assert path == run.path / "learning_curve.png"
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_a_full_disk_is_named(tmp_path):
    run = create(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(RunDirectoryError, match=r"metrics.jsonl can't be written"):
            run.log({"timesteps": 1, "episode_returns": [1.0] * 100})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_one_process_at_a_time(tmp_path):
    run = create(tmp_path)
    code = (
        "from hotloop.runs import RunDirectory; import sys\n"
        "try: RunDirectory.open(sys.argv[1]).lock()\n"
        "except Exception as error: print(error)"
    )
    command = [sys.executable, "-c", code, str(run.path)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "is in use by another training" in result.stdout
    run.close()
    assert not subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_resuming_cuts_the_metrics_back(tmp_path):
    run = create(tmp_path)
    for iteration in (1, 2, 3):
        run.log({"iteration": iteration, "timesteps": 10 * iteration, "episode_returns": []})
    run.close()
    with open(run.path / "metrics.jsonl", "a") as file:
        file.write('{"iteration": 4, "timest')
    again = RunDirectory.open(run.path)
    again.resume({"seed": 4, "total_timesteps": 100}, timesteps=20, iteration=2)
    again.log({"iteration": 3, "timesteps": 30, "episode_returns": []})
    assert [line["iteration"] for line in again.metrics()] == [1, 2, 3]
    content = json.loads((run.path / "config.json").read_text())
    assert content["config"] == {"seed": 4, "total_timesteps": 100}
    assert [resumed["timesteps"] for resumed in content["resumed"]] == [20]


def test_a_signal_waits_for_the_current_write():
    done = []

    def interrupted():
        with delayed_interrupt():
            signal.raise_signal(signal.SIGINT)
            done.append("the rest")

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert done == ["the rest"]


def _log(run, *iterations):
    for iteration in iterations:
        returns = [100.0 + iteration]
        run.log({"iteration": iteration, "timesteps": 10 * iteration, "episode_returns": returns})
    run.close()


def test_a_flipped_bit_in_any_byte_of_metrics_is_found(tmp_path):
    run = create(tmp_path)
    _log(run, 1, 2, 3)
    path = run.path / "metrics.jsonl"
    intact = path.read_bytes()
    lines, num_named = run.metrics(), 0
    for place in range(len(intact)):
        damaged = bytearray(intact)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        try:  # without its line feed, the last line is as incomplete as that of a killed run
            assert run.metrics() == lines[:2]
            assert place == len(intact) - 1
        except RunDirectoryError as error:
            num_named += f"{path} is damaged in line" in str(error)
    assert num_named == len(intact) - 1


# The first line of a file without checksums may have any number.
@pytest.mark.parametrize(
    ("lost", "has_checksums"), [([0], True), ([1], True), ([0, 1], True), ([1], False)]
)
def test_lost_lines_are_noticed(tmp_path, lost, has_checksums):
    run = create(tmp_path)
    _log(run, 1, 2, 3, 4)
    path = run.path / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    if not has_checksums:
        lines = [line.partition(', "checksum"')[0] + "}\n" for line in lines]
    path.write_text("".join(line for k, line in enumerate(lines) if k not in lost))
    message = "the checksum .* is wrong" if has_checksums else "`iteration` must be 2, got 3"
    with pytest.raises(
        RunDirectoryError, match=rf"damaged in line {1 + (lost == [1])} \({message}"
    ):
        run.metrics()


def test_a_run_is_not_resumed_without_the_lines_before_its_checkpoint(tmp_path):
    run = create(tmp_path)
    _log(run, 1, 2, 3)
    path = run.path / "metrics.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    again = RunDirectory.open(run.path)
    config = {"seed": 4, "total_timesteps": 100}
    with pytest.raises(RunDirectoryError, match=r"ends with iteration 2, but the checkpoint has 3"):
        again.resume(config, timesteps=30, iteration=3)
    # What the message advises: the curve begins at the checkpoint.
    path.rename(run.path / "old.jsonl")
    with pytest.warns(RuntimeWarning, match="has no lines: the learning curve begins at 30 steps"):
        again.resume(config, timesteps=30, iteration=3)
    _log(again, 4, 5)
    assert [line["iteration"] for line in again.metrics()] == [4, 5]


def test_metrics_of_older_versions_are_continued(tmp_path):
    run = create(tmp_path)
    line = {"iteration": 1, "timesteps": 10, "episode_returns": [1.0]}
    (run.path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    run.resume({"seed": 4, "total_timesteps": 100}, timesteps=10, iteration=1)
    _log(run, 2)
    assert [line["iteration"] for line in run.metrics()] == [1, 2]
    texts = (run.path / "metrics.jsonl").read_text().splitlines()
    assert all("checksum" in json.loads(text) for text in texts)


@pytest.mark.parametrize("name", ["cores.json", "accounting.json"])
def test_a_flipped_bit_in_any_byte_of_other_files_is_found(tmp_path, name):
    run = create(tmp_path)
    run.write_json(name, {"cores": 2, "seconds": 1.5, "queued_s": 0.25})
    path = run.path / name
    intact, value = path.read_bytes(), documents.read(path)
    assert value == {"cores": 2, "seconds": 1.5, "queued_s": 0.25}
    for place in range(len(intact)):
        damaged = bytearray(intact)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        try:
            found = documents.read(path)
        except ValueError:
            continue
        # Blanks have no meaning. Without its name the digest is unknown, which readers refuse.
        assert found == value or Crowding.from_json(found) is None


def test_a_path_with_bytes_that_are_no_utf_8(tmp_path, monkeypatch):
    path = tmp_path / os.fsdecode(b"caf\xe9")
    monkeypatch.setattr(sys, "argv", ["hotloop", "--run-dir", str(path)])
    config = dataclasses.asdict(DirectoryConfig()) | {"run_dir": str(path), "runs_dir": "runs"}
    options = {"env_id": "x", "algorithm": "ppo", "reference": "ppo", "seed": 1}
    RunDirectory.create(path, runs_dir="runs", config=config, **options)
    stored = RunDirectory.open(path)
    assert stored.is_signed
    assert stored.config["config"]["run_dir"].endswith("caf\ufffd")
    assert stored.config["command"][2].endswith("caf\ufffd")
    config["env_kwargs"] = {"file": "caf\udce9"}
    with pytest.raises(
        ConfigError, match=r"`env_kwargs` must have a text in UTF-8, got .*caf\ufffd"
    ):
        RunDirectory.create(tmp_path / "new", runs_dir="runs", config=config, **options)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a:\x1b[31mX", r"printable characters only, got 'a:\ufffd\[31mX': rename it"),
        ("x" * 2_000, "at most 1,000 characters, got 'xxx"),
    ],
)
def test_a_name_that_no_file_can_hold(tmp_path, name, message):
    options = {"env_id": name, "algorithm": "ppo", "reference": "ppo", "seed": 1}
    config = dataclasses.asdict(DirectoryConfig())
    with pytest.raises(ConfigError, match=f"`env_id` must have {message}"):
        RunDirectory.create(tmp_path / "new", runs_dir="runs", config=config, **options)
    assert not (tmp_path / "new").exists()
