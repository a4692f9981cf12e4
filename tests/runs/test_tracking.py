import dataclasses
import json
import math
import os
import re
import shutil
import struct
import subprocess
import sys
import types

import pytest

from hotloop.errors import ConfigError, MissingExtraError, install_command
from hotloop.runs import RunDirectory, trust
from hotloop.runs.tracker_files import last_tensorboard_step
from hotloop.runs.tracking import Trackers, open_trackers, tracker_scalars


@dataclasses.dataclass
class TrackedConfig:
    seed: int = 3
    total_timesteps: int = 400
    hidden_sizes: tuple = (64, 64)
    target_kl: float | None = None


def create(path):
    return RunDirectory.create(
        path,
        runs_dir=path.parent,
        env_id="CartPole-v1",
        algorithm="ppo",
        reference="ppo",
        seed=3,
        config=dataclasses.asdict(TrackedConfig()),
    )


def line(iteration, *, returns=(10.0, 20.0), **more):
    return {
        "iteration": iteration,
        "timesteps": 100 * iteration,
        "elapsed_s": 0.5 * iteration,
        "episode_returns": list(returns),
        "episode_lengths": [2 * int(x) for x in returns],
        "policy_loss": 0.25 * iteration,
        "learning_rate": 0.001,
        **more,
    }


EVALUATION = {
    "timesteps": 200,
    "returns": [1.0, 3.0],
    "lengths": [4, 8],
    "is_best": True,
    "mean_return": 2.0,
    "std_return": 1.0,
}


def test_names_by_hand():
    assert tracker_scalars(line(2, evaluation=EVALUATION, num_updates=40.0)) == {
        "charts/return": 15.0,
        "charts/length": 30.0,
        "charts/steps_per_s": 200.0,
        "charts/learning_rate": 0.001,
        "charts/num_updates": 40.0,
        "losses/policy_loss": 0.5,
        "eval/return": 2.0,
        "eval/return_std": 1.0,
        "eval/length": 6.0,
    }


def test_names_of_episode_info():
    info = {"is_success": [1.0, 0.0], "x": [None, 3.0], "none": [None, None]}
    scalars = tracker_scalars(
        line(1, episode_info=info, evaluation={**EVALUATION, "info": {"is_success": [1.0, 1.0]}})
    )
    assert scalars["info/is_success"] == 0.5
    assert scalars["info/x"] == 3.0
    assert "info/none" not in scalars
    assert scalars["eval/is_success"] == 1.0


def test_missing_and_non_finite_values_are_omitted():
    scalars = tracker_scalars(line(1, returns=[], entropy=math.nan, value_loss=math.inf))
    assert scalars.keys() == {"charts/steps_per_s", "charts/learning_rate", "losses/policy_loss"}


# --- TensorBoard ----------------------------------------------------------------------------------


def read_tensorboard(run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run.path / "tensorboard"))
    events.Reload()
    return events


def points(events, name):
    return [(event.step, event.value) for event in events.Scalars(name)]


def test_tensorboard(tmp_path):
    run = create(tmp_path / "run")
    trackers = open_trackers(["tensorboard"], run, resumed=False)
    trackers.log(100, line(1))
    trackers.log(200, line(2, evaluation=EVALUATION))
    trackers.close("finished")
    events = read_tensorboard(run)
    assert points(events, "losses/policy_loss") == [(100, 0.25), (200, 0.5)]
    assert points(events, "charts/return") == [(100, 15.0), (200, 15.0)]
    assert points(events, "eval/return") == [(200, 2.0)]
    (text,) = events.Tensors("config/text_summary")
    assert b'"hidden_sizes": [' in text.tensor_proto.string_val[0]
    assert "_hparams_/session_start_info" in events.PluginTagToContent("hparams")
    hyperparameters = events.PluginTagToContent("hparams")["_hparams_/session_start_info"]
    for name in (b"seed", b"algorithm", b"env_id", b"hidden_sizes"):
        assert name in hyperparameters
    assert len(list((run.path / "tensorboard").iterdir())) == 1


def test_tensorboard_after_a_kill(tmp_path):
    """Steps after the checkpoint appear once, as the resumed run logs them."""
    run = create(tmp_path / "run")
    killed = open_trackers(["tensorboard"], run, resumed=False)
    for k in (1, 2, 3, 4):
        run.log(line(k))
        killed.log(100 * k, line(k))
    for tracker in killed._trackers:
        tracker._writer.flush()
    run.resume(dataclasses.asdict(TrackedConfig()), timesteps=200, iteration=2)
    resumed = open_trackers(["tensorboard"], run, resumed=True)
    for k in (3, 4, 5):
        resumed.log(100 * k, line(k, returns=[7.0]))
    resumed.close("finished")
    found = points(read_tensorboard(run), "charts/return")
    assert found == [(100, 15.0), (200, 15.0), (300, 7.0), (400, 7.0), (500, 7.0)]
    killed.close("failed")


@pytest.mark.parametrize("num_cut", [20, 150, 400])  # bytes, of one record or several
def test_tensorboard_gets_what_a_killed_run_had_not_written(tmp_path, monkeypatch, num_cut):
    """Each iteration appears once, also after a resume from an earlier checkpoint."""
    from tensorboard.summary.writer import event_file_writer

    # Files of the same second are read in the order of these numbers as texts.
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(0))
    run = create(tmp_path / "run")
    first = open_trackers(["tensorboard"], run, resumed=False)
    for k in range(1, 7):
        run.log(line(k))
        if k <= 3:  # the later ones were in memory
            first.log(100 * k, line(k))
    first.close("failed")
    (path,) = (run.path / "tensorboard").iterdir()
    path.write_bytes(path.read_bytes()[:-num_cut])  # of the third iteration
    for checkpoint, last in ((5, 8), (4, 7), (7, 9)):
        run = RunDirectory.open(run.path)
        run.resume(
            dataclasses.asdict(TrackedConfig()), timesteps=100 * checkpoint, iteration=checkpoint
        )
        trackers = open_trackers(["tensorboard"], run, resumed=True)
        for k in range(checkpoint + 1, last + 1):
            run.log(line(k))
            trackers.log(100 * k, line(k))
        trackers.close("stopped")
        expected = [(100 * k, 0.5 * k / 2) for k in range(1, last + 1)]
        events = read_tensorboard(run)
        assert points(events, "losses/policy_loss") == expected
        for name in tracker_scalars(line(1)):
            assert [step for step, _ in points(events, name)] == [step for step, _ in expected]


def test_a_tracker_that_is_added_later_gets_all_metrics(tmp_path):
    run = create(tmp_path / "run")
    for k in (1, 2, 3):
        run.log(line(k))
    run.resume(dataclasses.asdict(TrackedConfig()), timesteps=200, iteration=2)
    trackers = open_trackers(["tensorboard"], run, resumed=True)
    trackers.log(300, line(3))
    trackers.close("finished")
    steps = [step for step, _ in points(read_tensorboard(run), "charts/return")]
    assert steps == [100, 200, 300]


# --- Weights & Biases -----------------------------------------------------------------------------

IN_A_PROCESS = """
import signal, sys
from pathlib import Path
from hotloop.runs import RunDirectory
from hotloop.runs.tracking import open_trackers
from tests.runs.test_tracking import EVALUATION, TrackedConfig, create, line

def handlers():
    return [signal.getsignal(number) for number in (2, 15, 1)]

before = handlers(), sys.stdout, sys.stderr
resumed = sys.argv[2] == "resumed"
path = Path(sys.argv[1])
run = RunDirectory.open(path) if resumed else create(path)
trackers = open_trackers(["wandb"], run, resumed=resumed)
assert (handlers(), sys.stdout, sys.stderr) == before
for k in (3, 4) if resumed else (1, 2):
    trackers.log(100 * k, line(k, evaluation=EVALUATION))
trackers.close("failed" if resumed else "finished")
"""


def run_in_process(code, *args, new_session=False, **env):
    """Run code outside the tests' process, since W&B keeps threads, processes and settings."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    # No test may use the network.
    home = {"HOME": env.pop("home", "/nonexistent"), "WANDB_BASE_URL": "http://127.0.0.1:9"}
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, args)],
        env={**clean, **home, **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        start_new_session=new_session,
    )


def read_wandb(path):
    """Return the records of a W&B transaction log: LevelDB's format after 7 bytes of header."""
    from wandb.proto import wandb_internal_pb2

    content = path.read_bytes()
    records, position, parts = [], 7, b""
    while position + 7 <= len(content):
        room = 32768 - position % 32768
        if room < 7:
            position += room
            continue
        length, kind = struct.unpack_from("<HB", content, position + 4)
        parts += content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # a complete record, or its last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            records.append(record)
            parts = b""
    return records


def records_of_kind(records, kind):
    return [getattr(r, kind) for r in records if r.WhichOneof("record_type") == kind]


def test_wandb_offline(tmp_path):
    path = tmp_path / "my run"
    for state in ("new", "resumed"):
        result = run_in_process(
            IN_A_PROCESS, path, state, WANDB_MODE="offline", WANDB_PROJECT="mine", home=tmp_path
        )
        assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    identity = json.loads((path / "wandb.json").read_text())
    assert identity["project"] == "mine"
    logs = sorted((path / "wandb").glob("offline-run-*/*.wandb"))
    assert len(logs) == 2
    for log, steps, code in zip(logs, ([100, 200], [300, 400]), (0, 1), strict=True):
        records = read_wandb(log)
        (run,) = records_of_kind(records, "run")
        assert (run.run_id, run.project) == (identity["id"], "mine")
        assert run.display_name == "my run"
        config = {item.key: json.loads(item.value_json) for item in run.config.update}
        assert config["hidden_sizes"] == [64, 64]
        assert (config["algorithm"], config["env_id"]) == ("ppo", "CartPole-v1")
        history = [
            {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in h.item}
            for h in records_of_kind(records, "history")
        ]
        assert [row["timesteps"] for row in history] == steps
        assert [row["charts/return"] for row in history] == [15.0, 15.0]
        assert [row["eval/return"] for row in history] == [2.0, 2.0]
        assert "timesteps" in {metric.step_metric for metric in records_of_kind(records, "metric")}
        assert [exit_.exit_code for exit_ in records_of_kind(records, "exit")] == [code]


KILLED = """
import os, signal, sys
from pathlib import Path
from hotloop.runs import RunDirectory
from hotloop.runs.tracking import open_trackers
from tests.runs.test_tracking import create, line

path, first, last = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
run = RunDirectory.open(path) if path.exists() else create(path)
if first > 1:
    run.resume(run.config["config"], timesteps=100 * (first - 1), iteration=first - 1)
trackers = open_trackers(["wandb"], run, resumed=first > 1)
for k in range(first, last + 1):
    run.log(line(k))
    trackers.log(100 * k, line(k))
if sys.argv[4] == "killed":
    os.killpg(0, signal.SIGKILL)
trackers.close("finished")
"""


def wandb_history(path):
    """Return the rows of all offline logs of a run."""
    rows = []
    for log in sorted((path / "wandb").glob("offline-run-*/*.wandb")):
        for row in records_of_kind(read_wandb(log), "history"):
            items = {"/".join(x.nested_key) or x.key: json.loads(x.value_json) for x in row.item}
            rows.append((row.step.num, items["timesteps"], items["losses/policy_loss"]))
    return sorted(rows)


@pytest.mark.slow
def test_wandb_has_each_iteration_once_after_a_kill(tmp_path):
    """The second process resumes from before the kill, the third from an earlier checkpoint."""
    path = tmp_path / "run"
    for first, last, end in ((1, 40, "killed"), (36, 60, "killed"), (31, 64, "finished")):
        run_in_process(
            KILLED, path, first, last, end, WANDB_MODE="offline", home=tmp_path, new_session=True
        )
    expected = [(k, 100 * k, 0.25 * k) for k in range(1, 65)]
    assert wandb_history(path) == expected


class FakeOnlineRun:
    """A run that the server knows up to iteration 4."""

    id, project, entity, offline, starting_step = "abcd", "hotloop", "me", False, 5

    def __init__(self):
        self.rows = []

    def define_metric(self, name, step_metric=None):
        pass

    def log(self, row, *, step, commit):
        self.rows.append((step, row["timesteps"], commit))


def test_wandb_online_continues_after_the_iterations_of_the_server(tmp_path, monkeypatch):
    server = FakeOnlineRun()
    fake = types.ModuleType("wandb")
    fake.init, fake.setup = lambda **options: server, lambda: None
    fake.Settings = type(
        "Settings", (), {"model_fields": {}, "__init__": lambda _, **options: None}
    )
    monkeypatch.setitem(sys.modules, "wandb", fake)
    run = create(tmp_path / "run")
    identity = {"id": "abcd", "project": "hotloop", "entity": "me"}
    run.write_json("wandb.json", {**identity, "signature": trust.signature(identity)})
    for k in range(1, 7):  # the server lacks 5 and 6, which the killed process did not send
        run.log(line(k))
    run = RunDirectory.open(run.path)
    run.resume(dataclasses.asdict(TrackedConfig()), timesteps=600, iteration=6)
    trackers = open_trackers(["wandb"], run, resumed=True)
    trackers.log(700, line(7))
    assert server.rows == [(5, 500, True), (6, 600, True), (7, 700, True)]
    server.rows.clear()
    run.resume(dataclasses.asdict(TrackedConfig()), timesteps=200, iteration=2)
    trackers = open_trackers(["wandb"], run, resumed=True)
    for k in (3, 4, 5):
        trackers.log(100 * k, line(k))
    assert server.rows == [(5, 500, True)]


def test_wandb_without_a_login_stops_before_anything_starts(tmp_path):
    args = ["train", "ppo", "--track", "wandb", "--run-dir", str(tmp_path / "run")]
    code = f"from hotloop.cli import main\nraise SystemExit(main({args!r}))"
    result = run_in_process(code, home=tmp_path)
    assert result.returncode == 2
    (message,) = result.stderr.splitlines()
    assert "wandb login" in message
    assert "WANDB_MODE=offline" in message
    assert not (tmp_path / "run").exists()


# --- MLflow ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def empty_store(tmp_path_factory):
    """Return a database of MLflow without runs. Making its tables takes a second."""
    from mlflow.tracking import MlflowClient

    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def mlflow_client(tmp_path, monkeypatch, empty_store):
    shutil.copy(empty_store, tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    from mlflow.tracking import MlflowClient

    return MlflowClient()


def mlflow_points(client, run, name):
    run_id = json.loads((run.path / "mlflow.json").read_text())["run_id"]
    return [(point.step, point.value) for point in client.get_metric_history(run_id, name)]


def test_mlflow_continues_the_same_curves(tmp_path, mlflow_client):
    """Each iteration appears once, also after a kill and in a store that lacks the run."""
    run = create(tmp_path / "run")
    killed = open_trackers(["mlflow"], run, resumed=False)
    for k in (1, 2, 3):
        run.log(line(k))
        killed.log(100 * k, line(k))
    killed._trackers[0]._send()  # the fourth is lost with the process
    run.log(line(4))
    killed.log(400, line(4))
    run = RunDirectory.open(run.path)
    run.resume(dataclasses.asdict(TrackedConfig()), timesteps=400, iteration=4)
    resumed = open_trackers(["mlflow"], run, resumed=True)
    run.log(line(5))
    resumed.log(500, line(5, evaluation=EVALUATION))
    resumed.close("finished")
    losses = [(100 * k, 0.25 * k) for k in (1, 2, 3, 4, 5)]
    assert mlflow_points(mlflow_client, run, "losses/policy_loss") == losses
    assert mlflow_points(mlflow_client, run, "eval/return") == [(500, 2.0)]
    (experiment,) = mlflow_client.search_experiments(filter_string="name = 'hotloop'")
    (stored,) = mlflow_client.search_runs([experiment.experiment_id])
    assert stored.info.status == "FINISHED"
    assert stored.info.run_name == "run"
    assert stored.data.params["algorithm"] == "ppo"
    assert stored.data.params["hidden_sizes"] == "[64, 64]"
    # A store without this run gets a new one with all metrics.
    mlflow_client.delete_run(stored.info.run_id)
    identity = {"run_id": "0" * 32}
    run.write_json("mlflow.json", {**identity, "signature": trust.signature(identity)})
    run = RunDirectory.open(run.path)
    run.resume(dataclasses.asdict(TrackedConfig()), timesteps=500, iteration=5)
    open_trackers(["mlflow"], run, resumed=True).close("failed")
    assert mlflow_points(mlflow_client, run, "losses/policy_loss") == losses


def test_mlflow_ignores_the_identity_of_a_run_by_someone_else(tmp_path, mlflow_client):
    mine = create(tmp_path / "mine")
    open_trackers(["mlflow"], mine, resumed=False).close("finished")
    identity = json.loads((mine.path / "mlflow.json").read_text())
    run = create(tmp_path / "run")
    run.write_json("mlflow.json", {**identity, "signature": "0" * 81})
    open_trackers(["mlflow"], run, resumed=True).close("finished")
    assert json.loads((run.path / "mlflow.json").read_text())["run_id"] != identity["run_id"]


def test_mlflow_has_options_that_a_resume_changed_as_tags(tmp_path, mlflow_client):
    run = create(tmp_path / "run")
    open_trackers(["mlflow"], run, resumed=False).close("failed")
    run = RunDirectory.open(run.path)
    before = run.config["config"]["total_timesteps"]
    changed = {**dataclasses.asdict(TrackedConfig()), "total_timesteps": before + 1}
    run.resume(changed, timesteps=0, iteration=0)
    open_trackers(["mlflow"], run, resumed=True).close("finished")
    run_id = json.loads((run.path / "mlflow.json").read_text())["run_id"]
    stored = mlflow_client.get_run(run_id).data
    assert stored.params["total_timesteps"] == str(before)
    assert stored.tags["total_timesteps"] == str(before + 1)
    assert "env_id" not in stored.tags


def test_mlflow_without_its_server_stops_before_anything_starts(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nowhere://x")
    with pytest.raises(ConfigError, match="set MLFLOW_TRACKING_URI to a server"):
        open_trackers(["mlflow"], create(tmp_path / "run"), resumed=False)


# --- Trackio --------------------------------------------------------------------------------------


class TrackioStore:
    """A stand-in for Trackio, whose requirements are too many for these tests.

    Attributes:
        points: (step, metrics) by project and run.
        options: the arguments of each `init`.
    """

    def __init__(self):
        self.points, self.options = {}, []

    def init(self, project, name, resume, **options):
        print("* Created new run")  # the library prints on standard output
        self.options.append(options)
        assert resume == "allow"
        points = self.points.setdefault((project, name), [])
        last = max((step for step, _ in points), default=-1)
        return TrackioRun(points, last + 1)


class TrackioRun:
    def __init__(self, points, next_step):
        self._points, self._next_step = points, next_step

    def log(self, metrics, step):
        self._points.append((step, metrics))

    def finish(self):
        print("* Run finished")


@pytest.fixture
def trackio_store(monkeypatch):
    store = TrackioStore()
    fake = types.ModuleType("trackio")
    fake.init = store.init
    monkeypatch.setitem(sys.modules, "trackio", fake)
    monkeypatch.delenv("TRACKIO_PROJECT", raising=False)
    return store


def test_trackio_continues_the_same_curves(tmp_path, trackio_store, capsys):
    """Each iteration appears once, also after a kill and in a store that lacks the run."""
    run = create(tmp_path / "run")
    killed = open_trackers(["trackio"], run, resumed=False)
    for k in (1, 2, 3, 4):
        run.log(line(k))
        if k < 4:  # the fourth is lost with the process
            killed.log(100 * k, line(k))
    run = RunDirectory.open(run.path)
    run.resume(dataclasses.asdict(TrackedConfig()), timesteps=200, iteration=2)
    resumed = open_trackers(["trackio"], run, resumed=True)
    for k in (3, 4, 5):
        run.log(line(k))
        resumed.log(100 * k, line(k))
    resumed.close("finished")
    ((project, name),) = trackio_store.points
    assert (project, name[:-6]) == ("hotloop", "run-")
    (points,) = trackio_store.points.values()
    losses = [(step, metrics["losses/policy_loss"]) for step, metrics in points]
    assert losses == [(100 * k, 0.25 * k) for k in (1, 2, 3, 4, 5)]
    assert trackio_store.options[0]["config"]["hidden_sizes"] == [64, 64]
    # A store without this run gets all metrics.
    trackio_store.points.clear()
    run = RunDirectory.open(run.path)
    run.resume(dataclasses.asdict(TrackedConfig()), timesteps=500, iteration=5)
    open_trackers(["trackio"], run, resumed=True).close("failed")
    assert [step for step, _ in trackio_store.points[project, name]] == [100, 200, 300, 400, 500]
    assert capsys.readouterr() == ("", "")


def test_runs_of_one_name_are_separate_in_trackio(tmp_path, trackio_store, monkeypatch):
    monkeypatch.setenv("TRACKIO_PROJECT", "mine")
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        run = create(tmp_path / folder / "run")
        open_trackers(["trackio"], run, resumed=False).close("finished")
    assert [project for project, _ in trackio_store.points] == ["mine", "mine"]


def test_trackio_without_its_server_stops_before_anything_starts(tmp_path, trackio_store):
    def refuse(**options):
        raise ValueError("a write token is required\nsee the manual")

    sys.modules["trackio"].init = refuse
    with pytest.raises(ConfigError, match=r"started \(a write token is required\): check TRACKIO"):
        open_trackers(["trackio"], create(tmp_path / "run"), resumed=False)


# --- your own -------------------------------------------------------------------------------------


class PrintedMetrics:
    title = "printed"

    def __init__(self, run, resumed):
        self.path = run.path / "printed.txt"

    def log(self, iteration, timesteps, scalars):
        with self.path.open("a") as file:
            print(timesteps, scalars["losses/policy_loss"], file=file)

    def close(self, status):
        with self.path.open("a") as file:
            print(status, file=file)


def test_a_package_adds_a_tracker_by_an_entry_point(tmp_path, monkeypatch):
    from hotloop.algorithms import ppo

    folder = tmp_path / "mine-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    entry = f"[hotloop.trackers]\nprinted = {__name__}:PrintedMetrics\n"
    (folder / "entry_points.txt").write_text(entry)
    with pytest.raises(ConfigError, match="'trackio', got"):
        ppo.Config(track=("printed",))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert ppo.Config(track=("printed",)).track == ("printed",)
    run = create(tmp_path / "run")
    trackers = open_trackers(["printed"], run, resumed=False)
    trackers.log(100, line(1))
    trackers.close("finished")
    assert (run.path / "printed.txt").read_text() == "100 0.25\nfinished\n"


# --- all ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("tensorboard", "torch.utils.tensorboard"),
        *(("wandb", "wandb"), ("mlflow", "mlflow"), ("trackio", "trackio")),
    ],
)
def test_a_missing_library_names_its_extra(tmp_path, monkeypatch, name, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"pip install .*\[.*{name}\]'"):
        open_trackers([name], create(tmp_path / "run"), resumed=False)


def test_a_folder_called_wandb_is_not_the_library(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", types.ModuleType("wandb"))
    with pytest.raises(MissingExtraError, match=re.escape(install_command("wandb"))):
        open_trackers(["wandb"], create(tmp_path / "run"), resumed=False)


class FakeTracker:
    title = "Fake"

    def __init__(self, failing=()):
        self.failing = failing
        self.logged = []
        self.closed = []

    def log(self, iteration, timesteps, scalars):
        self.logged.append(timesteps)
        if "log" in self.failing:
            raise RuntimeError("the server\nis gone")

    def close(self, status):
        self.closed.append(status)
        if "close" in self.failing:
            raise OSError("too late")


def test_a_tracker_that_fails_is_dropped_and_named_once(capsys):
    good, bad = FakeTracker(), FakeTracker(failing=["log"])
    trackers = Trackers([bad, good])
    for k in (1, 2, 3):
        trackers.log(100 * k, line(k))
    trackers.close("stopped")
    assert (bad.logged, bad.closed) == ([100], [])
    assert (good.logged, good.closed) == ([100, 200, 300], ["stopped"])
    assert capsys.readouterr().err == (
        "hotloop: Fake failed (RuntimeError: the server): the run continues without it\n"
    )


def test_a_tracker_that_fails_to_close(capsys):
    bad, good = FakeTracker(failing=["close"]), FakeTracker()
    trackers = Trackers([bad, good])
    trackers.close("finished")
    trackers.close("finished")
    assert (bad.closed, good.closed) == (["finished"], ["finished"])
    assert capsys.readouterr().err.count("Fake failed (OSError: too late)") == 1


def test_opened_trackers_are_closed_if_another_fails_to_open(tmp_path, monkeypatch):
    from hotloop.runs import tracking

    opened = FakeTracker()

    def refuse(run, resumed):
        raise ConfigError("not logged in")

    trackers = {"tensorboard": lambda run, resumed: opened, "wandb": refuse}
    monkeypatch.setattr(tracking, "_TRACKERS", trackers)
    with pytest.raises(ConfigError, match="not logged in"):
        open_trackers(["tensorboard", "wandb"], create(tmp_path / "run"), resumed=False)
    assert opened.closed == ["failed"]


def test_trackers_are_imported_only_on_request(tmp_path, monkeypatch):
    from hotloop.algorithms import ppo

    libraries = {"wandb", "tensorboard", "torch.utils.tensorboard"}
    code = "import sys, hotloop.runs.tracking\n"
    code += f"assert not {libraries} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)
    for name in libraries:
        monkeypatch.setitem(sys.modules, name, None)  # an import would raise
    small = {"total_timesteps": 128, "num_steps": 32, "num_envs": 2, "execution": "eager"}
    ppo.train(ppo.Config(**small, run_dir=str(tmp_path / "run")))


@pytest.mark.parametrize("name", ["wandb", ".wandb"])
@pytest.mark.parametrize("place", ["run", "other", "other/checkpoints"])
def test_settings_of_wandb_in_a_run_directory_are_refused(tmp_path, monkeypatch, name, place):
    """They could name another server, which would get the user's key."""
    run, other = create(tmp_path / "run"), create(tmp_path / "other")
    (other.path / "checkpoints").mkdir(exist_ok=True)
    place = tmp_path / place
    (place / name).mkdir()
    (place / name / "settings").write_text("[default]\nbase_url = http://192.0.2.1\n")
    monkeypatch.chdir(place if place != run.path else tmp_path)
    monkeypatch.setattr(
        "importlib.import_module", lambda *_: pytest.fail("wandb must not be imported")
    )
    with pytest.raises(ConfigError, match=r"read its settings from a run directory, .*settings"):
        open_trackers(["wandb"], run, resumed=False)


def test_a_pipe_among_the_files_of_a_tracker_is_skipped(tmp_path):
    pytest.importorskip("tensorboard")
    os.mkfifo(tmp_path / "events.out.tfevents.1")
    assert last_tensorboard_step(tmp_path, "charts/steps_per_s") == 0
