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


def options_of_init(monkeypatch, address=None, error=None):
    """Return the options that `connect` passes to `ray.init`, which may raise an error."""
    passed = {}

    def init(**options):
        passed.update(options)
        if error:
            raise error

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    with connect(address, num_cpus=2, runtime_env={"pipp": []} if error else {}):
        return passed


def test_a_new_cluster_starts_beside_a_running_one(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    options = options_of_init(monkeypatch)
    assert options["address"] == "local"  # Ray would else join a cluster that it finds here
    assert options["num_cpus"] >= 2


def test_the_address_of_the_environment_is_used_without_a_number_of_cpus(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    options = options_of_init(monkeypatch)
    assert options["address"] == "auto"
    assert "num_cpus" not in options


@pytest.mark.parametrize("variable", ["TMPDIR", "RAY_TMPDIR"])
def test_a_long_directory_of_sockets_is_reported(monkeypatch, variable):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setenv(variable, "/" + 40 * "x")
    message = rf"`{variable}` /x+ is too long for Ray, .* `RAY_TMPDIR` .* at most 39 bytes, such as"
    with pytest.raises(ConfigError, match=message):
        options_of_init(monkeypatch)
    monkeypatch.setenv("RAY_TMPDIR", "/tmp")
    assert options_of_init(monkeypatch)
    monkeypatch.setenv("RAY_TMPDIR", "/" + 38 * "x")
    assert options_of_init(monkeypatch)


def test_errors_of_a_local_start_do_not_blame_versions(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(ConfigError, match=r"does not accept this `ray_runtime_env`: no field pipp"):
        options_of_init(monkeypatch, error=ValueError("no field pipp"))
    with pytest.raises(ConfigError, match=r"can't start on this machine: no port: its logs are in"):
        options_of_init(monkeypatch, error=RuntimeError("no port"))
