"""The connection to an existing Ray cluster, or to a new one on this machine."""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from typing import Any

from hotloop.base.cores import available_cores
from hotloop.errors import (
    ConfigError,
    EnvironmentFailure,
    HotloopError,
    first_line,
    requires_extra,
)
from hotloop.rollouts.failures import worker_error

# Time limit for connecting to an address.
_CONNECT_S = 5.0
# Check interval, connection timeout and time limit for the head. Ray ends the process after 60 s.
_CHECK_S = 5.0
_ANSWER_S = 1.0
_GONE_S = 20.0
# Maximum length of a socket's path on Linux, and of Ray's paths below their parent directory.
_MAX_SOCKET_PATH = 107
_SOCKET_PATH = "/ray/session_2000-01-01_00-00-00_000000_1234567/sockets/plasma_store"
# The option for the resources of each kind of actor.
_RESOURCES = {"workers": "worker_resources", "inference_actors": "inference_resources"}
_ENDED_MESSAGE = (
    "hotloop: this process ended before its training did. Ray silently ends it if Ray's own "
    "processes on this machine are gone: check `ray status`, and continue from the last "
    "checkpoint with `hotloop resume RUN`"
)


def import_ray() -> Any:
    """Return the Ray module.

    Raises:
        MissingExtraError: Ray is not installed.
    """
    # Ray prompts for usage statistics at its first start, and warns of its own variables.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    with requires_extra("`backend` 'ray' needs Ray", "ray"):
        import ray
    return ray


class _NoPaths(list[str]):
    """The directories that Ray puts first on the path of actors: none, not even the current one.
    The actors append the learner's own path.
    """

    def extend(self, paths: Any) -> None:
        pass


@contextlib.contextmanager
def connect(
    address: str | None, *, num_cpus: float, runtime_env: Mapping[str, Any]
) -> Iterator[Any]:
    """Connect to Ray for the duration of the context.

    Args:
        address: Address of a cluster, `host:port` or "auto". None: the address in `RAY_ADDRESS`, or
            start a cluster here, and end it.
        num_cpus: Minimum number of CPUs of a new cluster, even if the machine has fewer cores.
        runtime_env: Ray's runtime environment of actors.

    Raises:
        MissingExtraError: Ray is not installed.
        ConfigError: The cluster does not answer, its version differs, or none can start here.
    """
    ray = import_ray()
    options: dict[str, Any] = {"runtime_env": dict(runtime_env)} if runtime_env else {}
    options |= {"log_to_driver": False, "logging_level": logging.ERROR}
    options["job_config"] = ray.job_config.JobConfig()
    options["job_config"]._py_driver_sys_path = _NoPaths()
    if ray.is_initialized():  # the program has connected, and will disconnect
        yield ray
        return
    address = address or os.environ.get("RAY_ADDRESS")  # Ray sets it in its jobs
    if address is None:
        _check_socket_paths()
        # Without "local", Ray would join a cluster that runs here, and refuse a number of CPUs.
        options |= {"address": "local", "include_dashboard": False}
        options["num_cpus"] = max(num_cpus, available_cores())
    else:
        _check_address(address)
        options["address"] = address
    try:
        ray.init(**options)
    except Exception as error:  # errors of connections, versions, runtime environments
        raise ConfigError(_connection_error(ray, error, address, runtime_env)) from error
    with _message_if_ended():
        try:
            yield ray
        finally:
            ray.shutdown()


def _ray_directory() -> str:
    """Return the directory of Ray's sessions."""
    parent = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    return os.path.join(parent, "ray")


def _check_socket_paths() -> None:
    """Check that the paths of Ray's sockets are short enough for the system."""
    parent = os.path.dirname(_ray_directory())
    limit = _MAX_SOCKET_PATH - len(_SOCKET_PATH)
    if len(os.fsencode(parent)) > limit:
        variable = "RAY_TMPDIR" if os.environ.get("RAY_TMPDIR") else "TMPDIR"
        raise ConfigError(
            f"`{variable}` {parent} is too long for Ray, whose sockets lie in it: set `RAY_TMPDIR` "
            f"to a directory with a path of at most {limit} bytes, such as `RAY_TMPDIR=/tmp`"
        )


def _connection_error(
    ray: Any, error: Exception, address: str | None, runtime_env: Mapping[str, Any]
) -> str:
    """Return the message of a failed start or connection, with advice for its cause."""
    text = _error_text(error)
    if runtime_env and isinstance(error, ValueError | TypeError):
        return f"Ray does not accept this `ray_runtime_env`: {text}: see Ray's `runtime_env`"
    if address is None:
        logs = os.path.join(_ray_directory(), "session_latest", "logs")
        return f"Ray {ray.__version__} can't start on this machine: {text}: its logs are in {logs}"
    return (
        f"Ray {ray.__version__} can't connect at {address}: {text}: check `ray status`; both sides "
        "need the same versions of Ray and Python, and a cluster with a token needs "
        "`RAY_AUTH_MODE=token`, see docs/cluster.md"
    )


@contextlib.contextmanager
def _message_if_ended() -> Iterator[None]:
    """Print a message if Ray ends this process, which Ray does silently."""
    script = f"read -r _ || echo {shlex.quote(_ENDED_MESSAGE)} >&2"
    process = subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE, start_new_session=True)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            process.communicate(b"done\n")


class ClusterHead:
    """Checks that the head of a cluster answers. If it is gone, calls of Ray block for long."""

    def __init__(self, ray: Any) -> None:
        self._address = str(ray.get_runtime_context().gcs_address)
        self._checked_at_s = self._answered_at_s = time.monotonic()

    def check(self) -> None:
        """Connect to the head, at most once per interval.

        Raises:
            HotloopError: The head has not answered for long.
        """
        now = time.monotonic()
        if now - self._checked_at_s < _CHECK_S:
            return
        host, _, port = self._address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _ANSWER_S).close()
        except (OSError, ValueError) as error:
            if self._checked_at_s - self._answered_at_s > _GONE_S:
                raise HotloopError(
                    f"the head of the Ray cluster at {self._address} has been gone for "
                    f"{now - self._answered_at_s:.0f} s ({error}): restart it, and continue from "
                    "the last checkpoint with `hotloop resume`"
                ) from error
            self._checked_at_s = now
        else:
            self._checked_at_s = self._answered_at_s = time.monotonic()


def _check_address(address: str) -> None:
    """Check that a process listens at the address. Ray would try for a minute."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        return  # "auto", or an address of Ray's client
    try:
        socket.create_connection((host.removeprefix("ray://"), int(port)), _CONNECT_S).close()
    except OSError as error:
        raise ConfigError(
            f"no Ray answers at `ray_address` {address} ({error}): start one with `ray start "
            "--head`, which prints its address, or leave the option out"
        ) from error


def check_resources(ray: Any, demands: Mapping[str, tuple[Mapping[str, float], int]]) -> None:
    """Check that the cluster has room for the actors.

    Args:
        ray: The connected Ray module.
        demands: Resources of each actor (`num_cpus`, `num_gpus` and custom ones) and number of
            actors, by the option that sets this number.

    Raises:
        ConfigError: The cluster has less.
    """
    names = {"num_cpus": "CPU", "num_gpus": "GPU"}
    available = ray.cluster_resources()
    for name in sorted({name for resources, _ in demands.values() for name in resources}):
        has, total, texts, advice = available.get(names.get(name, name), 0.0), 0.0, list[str](), ""
        for option, (resources, count) in demands.items():
            if amount := resources.get(name, 0.0):
                total += amount * count
                texts.append(f"{count} {option.replace('_', ' ')} of `{name}` {amount:g} each")
                advice = f"use fewer `{option}`, lower `{_RESOURCES[option]}`"
        if total > has:
            available_text = ", ".join(
                f"{key} {value:g}" for key, value in sorted(available.items()) if ":" not in key
            )
            raise ConfigError(
                f"{' and '.join(texts)} need {total:g}, and the cluster has {has:g}: {advice}, or "
                f"add nodes (available: {available_text})"
            )


def check_store(ray: Any, num_parts: int, part_bytes: int, weights_bytes: int) -> None:
    """Check that this node's object store can hold the parts and the weights.

    Args:
        ray: The connected Ray module.
        num_parts: Maximum number of parts in flight.
        part_bytes: Size of a part.
        weights_bytes: Size of one version of the weights. There are two.

    Raises:
        ConfigError: The store is smaller.
    """
    node_id = ray.get_runtime_context().get_node_id()
    resources = next((node["Resources"] for node in ray.nodes() if node["NodeID"] == node_id), {})
    size, total = resources.get("object_store_memory"), num_parts * part_bytes + 2 * weights_bytes
    if size is not None and total > size:
        raise ConfigError(
            f"{num_parts:,} fragments in flight of {part_bytes:,} bytes and the weights take "
            f"{total:,} bytes of Ray's object store, which has {size:,.0f} on this "
            "node: use shorter fragments, or start Ray with a larger `--object-store-memory`"
        )


def actor_error(error: Exception, name: str, *, is_starting: bool = False) -> HotloopError:
    """Return the original error of an actor, with the actor's name; see `worker_error`."""
    cause = getattr(error, "cause", None) or error
    if isinstance(cause, HotloopError):
        return worker_error(name, type(cause).__name__, str(cause), is_starting=is_starting)
    text = first_line(cause)
    if "hotloop" in text and isinstance(cause, ModuleNotFoundError):
        return ConfigError(
            f"{name}: its node has no hotloop ({text}): install it there, or ship it with "
            '`ray_runtime_env` \'{"pip": ["hotloop[train]"]}\''
        )
    return EnvironmentFailure(f"{name}: {type(cause).__name__}: {text}")


def _error_text(error: BaseException) -> str:
    """Return the relevant lines of Ray's error: all of a version mismatch, otherwise the first."""
    text = str(error)
    return " ".join(text.split()) if "Version mismatch" in text else first_line(error)
