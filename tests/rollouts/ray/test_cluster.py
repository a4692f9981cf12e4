"""Error messages of failed connections to Ray."""

import re

import pytest

from hotloop.errors import ConfigError, EnvironmentFailure, HotloopError, install_command
from hotloop.rollouts.ray.cluster import ClusterHead, actor_error, connect

ray = pytest.importorskip("ray", reason="Ray is not installed")


def connect_with_error(monkeypatch, error, address="auto"):
    def init(**options):
        raise error

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    with connect(address, num_cpus=1, runtime_env={}):
        pass


def test_both_of_two_different_versions_are_reported(monkeypatch):
    text = "Version mismatch: The cluster was started with:\n    Ray: 2.9.0\n    Python: 3.10.1\n"
    text += "This process on node 10.0.0.1 was started with:\n    Ray: 2.60.0\n    Python: 3.11.9\n"
    with pytest.raises(ConfigError, match=r"Ray: 2\.9\.0 Python: 3\.10\.1 .*2\.60\.0 Py"):
        connect_with_error(monkeypatch, RuntimeError(text))


def test_a_failed_connection_suggests_a_token(monkeypatch):
    with pytest.raises(ConfigError, match=r"at auto: Failed to connect.* `RAY_AUTH_MODE=token`"):
        connect_with_error(monkeypatch, ConnectionError("Failed to connect\nand more"))


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with (
        pytest.raises(HotloopError, match=re.escape(install_command("ray"))),
        connect(None, num_cpus=1, runtime_env={}),
    ):
        pass


def test_a_node_without_hotloop_is_reported_with_advice():
    cause = ModuleNotFoundError("No module named 'hotloop'")
    error = actor_error(cause, "worker 3")
    assert isinstance(error, ConfigError)
    assert "worker 3: its node has no hotloop" in str(error)
    assert "`ray_runtime_env`" in str(error)
    assert isinstance(
        actor_error(ModuleNotFoundError("No module named 'sim'"), "worker 1"), EnvironmentFailure
    )


class LostConnection:
    """A connection to a cluster without a head."""

    def get_runtime_context(self):
        return self

    gcs_address = "127.0.0.1:1"


def test_a_head_that_is_gone_for_long_ends_the_run(monkeypatch):
    seconds = [1000.0]
    monkeypatch.setattr("hotloop.rollouts.ray.cluster.time.monotonic", lambda: seconds[0])
    head = ClusterHead(LostConnection())
    for _ in range(4):
        seconds[0] += 6.0
        head.check()
    seconds[0] += 6.0
    with pytest.raises(HotloopError, match=r"at 127.0.0.1:1 has been gone for 30 s .* `hotloop"):
        head.check()
