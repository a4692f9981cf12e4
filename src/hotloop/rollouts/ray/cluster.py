"""A connection to Ray: to a cluster that is there, or to one of this machine alone."""

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

from hotloop.errors import ConfigError, EnvironmentFailure, HotloopError, MissingExtraError
from hotloop.system.cores import available_cores

# An address where nobody answers is given up after so long.
_CONNECT_S = 5.0
# The head is looked for so often, and given up after so long; Ray would end the process after 60 s.
_CHECK_S = 5.0
_ANSWER_S = 1.0
_GONE_S = 20.0
# What says how much each actor of a kind takes.
_RESOURCES = {"workers": "worker_resources", "inference_actors": "inference_resources"}
_ENDED = (
    "hotloop: this process ended before its training did. Ray ends it without a word where its "
    "own processes on this machine are gone: look at `ray status`. The last checkpoint is kept: "
    "`hotloop resume RUN`"
)


def import_ray() -> Any:
    """Return Ray.

    Raises:
        MissingExtraError: it is not installed.
    """
    # It asks for statistics of its use at the first start, and warns of its own variables.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError(
            f"`backend` 'ray' needs Ray ({error}): pip install 'hotloop[ray]'"
        ) from error
    return ray


@contextlib.contextmanager
def connected(
    address: str | None, *, num_cpus: float, runtime_env: Mapping[str, Any]
) -> Iterator[Any]:
    """Connect to Ray, and leave it as it was.

    Args:
        address: of a cluster, `host:port` or "auto"; None: one is started here, and ended.
        num_cpus: that a cluster which is started here has at least, however many cores there are.
        runtime_env: what actors run in.

    Raises:
        MissingExtraError: Ray is not installed.
        ConfigError: nobody answers, or it is of another version.
    """
    ray = import_ray()
    options: dict[str, Any] = {"runtime_env": dict(runtime_env)} if runtime_env else {}
    options |= {"log_to_driver": False, "logging_level": logging.ERROR}
    if ray.is_initialized():  # the program's own: it ends it, too
        yield ray
        return
    if address is None:
        options |= {"num_cpus": max(num_cpus, available_cores()), "include_dashboard": False}
    else:
        _need_answer(address)
        options["address"] = address
    try:
        ray.init(**options)
    except Exception as error:  # of many kinds: connections, versions, runtime environments
        where, wants = "on this machine", ""
        if address is not None:
            where, token = f"at {address}", "RAY_AUTH_MODE=token"
            wants = f", and a cluster that has a token wants it: `{token}`, see docs/cluster.md"
        raise ConfigError(
            f"Ray {ray.__version__} can't be had {where}: {_told(error)}: look at `ray status`; "
            f"both sides need the same versions of Ray and Python{wants}"
        ) from error
    with _told_when_ended():
        try:
            yield ray
        finally:
            ray.shutdown()


@contextlib.contextmanager
def _told_when_ended() -> Iterator[None]:
    """Have somebody say so where Ray ends this process, which it does without a word."""
    script = f"read -r _ || echo {shlex.quote(_ENDED)} >&2"
    child = subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE, start_new_session=True)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            child.communicate(b"done\n")


class Head:
    """Looks whether the head of a cluster answers; what waits for it would wait for long.

    Args:
        ray: connected.
    """

    def __init__(self, ray: Any) -> None:
        self._address = str(ray.get_runtime_context().gcs_address)
        self._looked_s = self._answered_s = time.monotonic()

    def check(self) -> None:
        """Look for it now and then.

        Raises:
            HotloopError: nobody has answered for long.
        """
        now = time.monotonic()
        if now - self._looked_s < _CHECK_S:
            return
        host, _, port = self._address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _ANSWER_S).close()
        except (OSError, ValueError) as error:
            if self._looked_s - self._answered_s > _GONE_S:
                raise HotloopError(
                    f"the head of the Ray cluster at {self._address} has been gone for "
                    f"{now - self._answered_s:.0f} s ({error}): start it again, and go on from the "
                    "last checkpoint with `hotloop resume`"
                ) from error
            self._looked_s = now
        else:
            self._looked_s = self._answered_s = time.monotonic()


def _need_answer(address: str) -> None:
    """Refuse an address where nobody listens: Ray would try for a minute."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        return  # "auto", or an address of Ray's client
    try:
        socket.create_connection((host.removeprefix("ray://"), int(port)), _CONNECT_S).close()
    except OSError as error:
        raise ConfigError(
            f"no Ray answers at `ray_address` {address} ({error}): start one with `ray start "
            "--head`, which prints its address, or leave the option out"
        ) from error


def need_resources(ray: Any, wanted: Mapping[str, tuple[Mapping[str, float], int]]) -> None:
    """Refuse actors that the cluster has no room for.

    Args:
        ray: connected.
        wanted: by the option that says how many actors there are of a kind, what each of them takes
            and how many: `num_cpus`, `num_gpus`, and what nodes have besides.

    Raises:
        ConfigError: there is less.
    """
    names = {"num_cpus": "CPU", "num_gpus": "GPU"}
    there = ray.cluster_resources()
    for name in sorted({name for resources, _ in wanted.values() for name in resources}):
        has, needed, each, lower = there.get(names.get(name, name), 0.0), 0.0, list[str](), ""
        for option, (resources, count) in wanted.items():
            if amount := resources.get(name, 0.0):
                needed += amount * count
                each.append(f"{count} {option.replace('_', ' ')} of `{name}` {amount:g} each")
                lower = f"use fewer `{option}`, lower `{_RESOURCES[option]}`"
        if needed > has:
            known = ", ".join(
                f"{key} {value:g}" for key, value in sorted(there.items()) if ":" not in key
            )
            raise ConfigError(
                f"{' and '.join(each)} need {needed:g}, and the cluster has {has:g}: {lower}, or "
                f"add nodes (there are {known})"
            )


def need_store(ray: Any, parts: int, part_bytes: int, weights_bytes: int) -> None:
    """Refuse what the store of this node can't hold, where all of it comes together.

    Args:
        ray: connected.
        parts: in flight at most.
        part_bytes: of each.
        weights_bytes: of a version, of which there are two.

    Raises:
        ConfigError: the store is smaller.
    """
    own = ray.get_runtime_context().get_node_id()
    there = next((one["Resources"] for one in ray.nodes() if one["NodeID"] == own), {})
    size, needed = there.get("object_store_memory"), parts * part_bytes + 2 * weights_bytes
    if size is not None and needed > size:
        raise ConfigError(
            f"{parts:,} fragments in flight of {part_bytes:,} bytes and the weights take "
            f"{needed:,} bytes of Ray's object store, which has {size:,.0f} on this node: use "
            "shorter fragments, or start Ray with more, `--object-store-memory`"
        )


def of_actor(error: Exception, name: str) -> HotloopError:
    """Return an actor's error as what it was, with the actor's name."""
    cause = getattr(error, "cause", None) or error
    if isinstance(cause, HotloopError):
        return type(cause)(f"{name}: {cause}")
    text = first_line(cause)
    if "creation task" in text:  # why it failed stands last
        text = str(cause).strip().splitlines()[-1].strip()
    if "hotloop" in text and isinstance(cause, ModuleNotFoundError):
        return ConfigError(
            f"{name}: its node has no hotloop ({text}): install it there, or ship it with "
            '`ray_runtime_env` \'{"pip": ["hotloop[train]"]}\''
        )
    return EnvironmentFailure(f"{name}: {type(cause).__name__}: {text}")


def _told(error: BaseException) -> str:
    """Return what Ray says: of versions that differ, both, which it says in several lines."""
    text = str(error)
    return " ".join(text.split()) if "Version mismatch" in text else first_line(error)


def first_line(error: BaseException) -> str:
    """Return what an error says first: Ray's go on for pages."""
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
