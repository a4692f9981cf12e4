"""Ray actors on several nodes, which are simulated on this machine."""

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time

import pytest

from hotloop import timing
from hotloop.algorithms import appo, ppo
from hotloop.cli import main
from hotloop.errors import ConfigError
from hotloop.runs import RunDirectory
from tests.rollouts.ray.test_ray import SMALL, assert_adds_up, pids_of

ray = pytest.importorskip("ray", reason="Ray is not installed")

STORE = {"object_store_memory": 100 * 2**20}
pytestmark = pytest.mark.outside

PATHS = {"PYTHONPATH": os.pathsep.join(sys.path)}


@contextlib.contextmanager
def start_cluster(*cores, head_cores=0):
    """Start a head, the node of this process, and a node per number of cores."""
    from ray.cluster_utils import Cluster

    ray.shutdown()
    head = {**STORE, "num_cpus": head_cores, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        cluster.nodes = [cluster.add_node(num_cpus=count, **STORE) for count in cores]
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


@contextlib.contextmanager
def join(cluster):
    ray.init(address=cluster.address, log_to_driver=False, runtime_env={"env_vars": PATHS})
    try:
        yield
    finally:
        ray.shutdown()


def make_config(path, kind=ppo.Config, **options):
    return kind(**{**SMALL, "backend": "ray", "run_dir": str(path), **options})


LOST_NODE = {
    "barrier": {},
    "lag:1": {"overlap": True},
    "variable": {"schedule": "variable"},
}


@pytest.mark.slow
@pytest.mark.timeout(300)
class TestLostNode:
    @pytest.fixture(scope="class")
    def two_nodes(self):
        """Start a cluster of two nodes with one core each, and end it before the next test."""
        with start_cluster(1, 1) as cluster, join(cluster):
            yield cluster

    @pytest.mark.parametrize("schedule", LOST_NODE)
    def test_a_lost_node_is_replaced_by_an_added_one(self, tmp_path, two_nodes, schedule):
        """Each node has an actor. One is killed during the run, and another is added."""
        lost = []

        def lose_one(report):
            if not lost and report.timesteps >= 128:
                lost.append(two_nodes.nodes.pop())
                two_nodes.remove_node(lost[0], allow_graceful=False)
                two_nodes.nodes.append(two_nodes.add_node(num_cpus=1, **STORE))

        config = make_config(tmp_path / "run", total_timesteps=64 * 10, **LOST_NODE[schedule])
        accounting = ppo.train(config, on_report=lose_one).accounting
        assert sum(worker["restarts"] for worker in accounting["workers"]) == 1
        assert lost[0].node_id not in {worker["node"] for worker in accounting["workers"]}
        assert accounting["trained"] == 64 * 10
        assert set(accounting["dropped"]) <= {"worker died", "run ended"}
        assert_adds_up(accounting)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_recordings_of_other_nodes_are_fetched_and_reported_by_node(tmp_path, capsys):
    with start_cluster(2, 2) as cluster, join(cluster):
        config = make_config(tmp_path / "run", workers=4, workers_per_node=2, num_minibatches=1)
        accounting = ppo.train(config).accounting
        node_ids = {node.node_id for node in cluster.nodes}
        with pytest.raises(
            ConfigError, match=r"4 workers, 1 per node, need 4 nodes .* cluster has 2"
        ):
            ppo.train(make_config(tmp_path / "no", workers=4, workers_per_node=1))
    nodes = [worker["node"] for worker in accounting["workers"]]
    assert {node: nodes.count(node) for node in nodes} == dict.fromkeys(node_ids, 2)
    assert all(worker["step_p50_s"] > 0 for worker in accounting["workers"])  # from recordings
    recordings, problems = timing.read_directory(tmp_path / "run" / "timing")
    assert sorted(recording.component for recording in recordings) == [
        "learner",
        *(f"worker-{n}" for n in range(4)),
    ]
    assert not problems
    assert all(recording.state == "complete" for recording in recordings)
    clocks = json.loads((tmp_path / "run" / "timing" / "clocks.json").read_text())
    assert clocks["others"] == {}  # all nodes share this machine's clock
    capsys.readouterr()
    assert main(["report", str(tmp_path / "run")]) == 0
    out = capsys.readouterr().out
    assert all(node[:8] in out for node in node_ids)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_recording_of_a_killed_actor_is_fetched(tmp_path):
    killed = []
    with start_cluster(2) as cluster, join(cluster):

        def kill_one(report):
            if not killed and report.timesteps >= 128:
                killed.append(pids_of("-f", "ray::Actor")[0])
                os.kill(killed[0], signal.SIGKILL)

        ppo.train(make_config(tmp_path / "run", total_timesteps=64 * 8), on_report=kill_one)
    recordings, _ = timing.read_directory(tmp_path / "run" / "timing")
    states = {r.pid: r.state for r in recordings if r.component != "learner"}
    assert len(states) == 3
    assert states[killed[0]] != "complete"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_under_hotloop_profile_other_nodes_are_sampled_too(tmp_path):
    run = tmp_path / "run"
    with start_cluster(2) as cluster:
        command = ["profile", "--out", str(tmp_path / "profile"), "train", "ppo"]
        done = start_run(command, cluster, run, "--total-timesteps", "2048", "--num-steps", "128")
        assert done.wait(200) == 0, done.stderr.read()
    samples = list((run / "timing").glob("process-*.samples*"))
    assert len(samples) >= 2, list((run / "timing").iterdir())


HEAD_IS_GONE = "the head of the Ray cluster at .* has been gone for"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("killed", "message"),
    [
        (("gcs_server",), HEAD_IS_GONE),
        # Ray may end the process before hotloop stops waiting for the head.
        (
            ("gcs_server", "raylet"),
            f"Ray silently ends it .* `hotloop resume RUN`|{HEAD_IS_GONE}",
        ),
    ],
)
def test_losing_the_head_ends_the_run_with_a_message_and_a_checkpoint(tmp_path, killed, message):
    with start_cluster(2) as cluster:
        run = start_run(
            ["train", "ppo"], cluster, tmp_path / "run", "--checkpoint-interval", "2000"
        )
        wait_until(lambda: (tmp_path / "run" / "checkpoints" / "last").exists())
        for name in killed:
            for process in cluster.head_node.all_processes[name]:
                process.process.kill()
        assert run.wait(120) == 1
        assert re.search(message, run.stderr.read())
    assert (tmp_path / "run" / "checkpoints" / "last" / "learner.safetensors").is_file()


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_killing_the_driver_leaves_no_actor(tmp_path):
    before = set(pids_of("-f", "ray::Actor"))
    with start_cluster(2) as cluster:
        run = start_run(["train", "ppo"], cluster, tmp_path / "run")
        wait_until(lambda: len(set(pids_of("-f", "ray::Actor")) - before) == 2)
        run.kill()
        run.wait()
        wait_until(lambda: not set(pids_of("-f", "ray::(Actor|NodeWatch)")) - before)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_fifty_actors_and_five_nodes_are_killed_and_every_transition_is_counted(tmp_path):
    """Kill at random in one run. A new node replaces each lost one."""
    rng, killed, lost = random.Random(1), [], []
    with start_cluster(2, 2, 2) as cluster, join(cluster):

        def strike(report):
            if len(killed) < 50 and report.timesteps > 256:
                pids = [pid for pid in pids_of("-f", "ray::Actor") if pid not in killed]
                if pids:
                    killed.append(rng.choice(pids))
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(killed[-1], signal.SIGKILL)
            if len(lost) < 5 and len(killed) >= 8 * (1 + len(lost)):
                node = cluster.nodes.pop(rng.randrange(len(cluster.nodes)))
                lost.append(node)
                cluster.remove_node(node, allow_graceful=False)
                cluster.nodes.append(cluster.add_node(num_cpus=2, **STORE))

        config = make_config(
            tmp_path / "run",
            appo.Config,
            workers=4,
            schedule="async",
            max_failures=1000,
            total_timesteps=128 * 90,
        )
        accounting = appo.train(config, on_report=strike).accounting
    assert len(killed) == 50
    assert len(lost) == 5
    assert accounting["trained"] == 128 * 90
    assert_adds_up(accounting)
    lines = RunDirectory.open(tmp_path / "run").metrics()
    assert [line["timesteps"] for line in lines] == [128 * k for k in range(1, 91)]
    lengths = [length for line in lines for length in line["episode_lengths"]]
    third = len(lengths) // 3
    assert sum(lengths[-third:]) > 1.5 * sum(lengths[:third])  # it learns nevertheless


def start_run(command, cluster, run, *options):
    """Start a PPO training on a cluster."""
    command = [sys.executable, "-m", "hotloop", *command, "--run-dir", str(run)]
    command += ["--backend", "ray", "--ray-address", cluster.address, "--workers", "2"]
    command += ["--num-envs", "4", "--execution", "eager", *options]
    return subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **PATHS},
    )


def wait_until(condition, timeout_s=200):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)
