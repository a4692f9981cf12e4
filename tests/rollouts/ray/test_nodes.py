"""Actors of Ray on several nodes, which are simulated on this machine."""

import os
import sys

import pytest

from hotloop.algorithms import ppo
from tests.rollouts.ray.test_ray import SMALL, assert_adds_up

ray = pytest.importorskip("ray", reason="Ray is not installed")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_node_that_is_lost_is_done_without_and_one_that_is_added_is_used(tmp_path):
    """Two nodes of one core for actors, of which one is killed; later another one is there."""
    from ray.cluster_utils import Cluster

    options = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
    cluster = Cluster(
        initialize_head=True, head_node_args={**options, "num_cpus": 0, "include_dashboard": False}
    )
    ray.shutdown()
    nodes = [cluster.add_node(**options) for _ in range(2)]
    where = []
    try:
        ray.init(
            address=cluster.address,
            log_to_driver=False,
            runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(sys.path)}},
        )

        def lose_one(report):
            if not where and report.timesteps >= 128:
                where.append(nodes[1].node_id)
                cluster.remove_node(nodes[1], allow_graceful=False)
                nodes.append(cluster.add_node(**options))

        config = ppo.Config(
            **{**SMALL, "total_timesteps": 64 * 10}, backend="ray", run_dir=str(tmp_path / "run")
        )
        told = ppo.train(config, on_report=lose_one).accounting
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert sum(worker["restarts"] for worker in told["workers"]) == 1
    assert told["trained"] == 64 * 10
    assert_adds_up(told)
