"""Connecting to Ray: what is said where that fails."""

import pytest

from hotloop.errors import ConfigError, EnvironmentFailure, HotloopError
from hotloop.rollouts.ray.cluster import Head, connected, of_actor

ray = pytest.importorskip("ray", reason="Ray is not installed")


def connect(monkeypatch, error, address="auto"):
    def init(**options):
        raise error

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    with connected(address, num_cpus=1, runtime_env={}):
        pass


def test_versions_that_differ_are_both_told(monkeypatch):
    told = "Version mismatch: The cluster was started with:\n    Ray: 2.9.0\n    Python: 3.10.1\n"
    told += "This process on node 10.0.0.1 was started with:\n    Ray: 2.60.0\n    Python: 3.11.9\n"
    with pytest.raises(ConfigError, match=r"Ray: 2\.9\.0 Python: 3\.10\.1 .*2\.60\.0 Py"):
        connect(monkeypatch, RuntimeError(told))


def test_a_cluster_that_wants_a_token_may_be_why(monkeypatch):
    with pytest.raises(ConfigError, match=r"at auto: Failed to connect.* `RAY_AUTH_MODE=token`"):
        connect(monkeypatch, ConnectionError("Failed to connect\nand more"))


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with (
        pytest.raises(HotloopError, match=r"pip install 'hotloop\[ray\]'"),
        connected(None, num_cpus=1, runtime_env={}),
    ):
        pass


def test_a_node_without_hotloop_is_told_how_to_get_it():
    cause = ModuleNotFoundError("No module named 'hotloop'")
    said = of_actor(cause, "worker 3")
    assert isinstance(said, ConfigError)
    assert "worker 3: its node has no hotloop" in str(said)
    assert "`ray_runtime_env`" in str(said)
    assert isinstance(
        of_actor(ModuleNotFoundError("No module named 'sim'"), "worker 1"), EnvironmentFailure
    )


class Nowhere:
    """A connection whose head is gone."""

    def get_runtime_context(self):
        return self

    gcs_address = "127.0.0.1:1"


def test_a_head_that_is_gone_for_long_ends_it(monkeypatch):
    seconds = [1000.0]
    monkeypatch.setattr("hotloop.rollouts.ray.cluster.time.monotonic", lambda: seconds[0])
    head = Head(Nowhere())
    for _ in range(4):
        seconds[0] += 6.0
        head.check()
    seconds[0] += 6.0
    with pytest.raises(HotloopError, match=r"at 127.0.0.1:1 has been gone for 30 s .* `hotloop"):
        head.check()
