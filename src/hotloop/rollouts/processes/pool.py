"""Environments in worker processes."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hotloop.envs import ActionSpec, EnvSpec, ObsSpec
from hotloop.errors import ConfigError
from hotloop.policies import ActingPolicy
from hotloop.rollouts.fleet import FleetRollout
from hotloop.rollouts.processes.messages import Greeting
from hotloop.rollouts.processes.supervisor import WorkerSupervisor
from hotloop.rollouts.processes.transport import FollowingTransport, ProcessTransport
from hotloop.rollouts.protocol import CollectionOptions, Inference
from hotloop.timing import span


class WorkerPool:
    """Environments in W worker processes, the same number in each.

    The constructor starts all workers and waits until their environments are made. The environment
    variable `HOTLOOP_WORKER` of a worker contains its number.

    Args:
        spec: Environments. Workers must be able to import a factory by name.
        num_workers: W.
        envs_per_worker: Environments of each worker.
        inference: The acting processes: each `worker` for its own environments, or one `central`
            process for the environments of all workers.
        agents: Index of each agent of several policies, by policy; see `rollout`.
        timing_dir: Directory of the workers' recordings. None: a directory that is removed with the
            pool.
        step_timeout_s: Time limit in seconds for a step, a reset, and the pause between two steps,
            after which a worker is replaced. None: no limit. Making environments, the first row of
            a process and evaluation may take at least a minute.
        max_failures: Maximum total number of replacements of environments and workers.

    Attributes:
        num_envs, obs_spec, action_spec, can_replay: See `Environments`.
        supervisor: Supervisor of the workers.
        workers: Processes of the workers.

    Raises:
        ConfigError: A factory can't be imported, or there is no room for so many workers.
        SpaceError: The workers' spaces differ.
        UnknownNameError, MissingExtraError, EnvironmentFailure: An environment can't be made, with
            the worker's number, and its traceback as the cause; or its process was killed or hung
            three times.
    """

    def __init__(
        self,
        spec: EnvSpec,
        *,
        num_workers: int,
        envs_per_worker: int = 1,
        inference: Inference = "worker",
        agents: Mapping[str, Sequence[int]] | None = None,
        timing_dir: str | Path | None = None,
        step_timeout_s: float | None = 300.0,
        max_failures: int = 100,
    ) -> None:
        # Check the options.
        for name, value in (("num_workers", num_workers), ("envs_per_worker", envs_per_worker)):
            if value < 1:
                raise ConfigError(f"`{name}` must be at least 1, got {value}")
        if inference not in ("worker", "central"):
            raise ConfigError(f"`inference` must be 'worker' or 'central', got '{inference}'")
        if not hasattr(os, "memfd_create"):
            raise ConfigError("workers need Linux: omit `workers`, or set `backend` 'inline'")
        env_fields = spec.to_json()
        # Prepare the directory of the recordings.
        self.num_workers, self.envs_per_worker = num_workers, envs_per_worker
        self.num_envs = num_workers * envs_per_worker
        self._rollouts: list[FleetRollout] = []
        self._transports: list[ProcessTransport] = []
        self._is_closed = False
        self._temporary_dir = None
        if timing_dir is None:
            self._temporary_dir = tempfile.TemporaryDirectory(prefix="hotloop-timing-")
            timing_dir = self._temporary_dir.name
        with contextlib.suppress(OSError):  # without a directory there are no recordings
            Path(timing_dir).mkdir(parents=True, exist_ok=True)
        # Start the workers.
        greeting = Greeting(
            worker=0,
            component="",
            wakeup_fds=(),
            timing_dir=str(timing_dir),
            env=env_fields,
            num_envs=envs_per_worker,
            agents={} if agents is None else agents,
        )
        self.supervisor = WorkerSupervisor(
            greeting,
            num_workers,
            central=inference == "central",
            step_timeout_s=step_timeout_s,
            max_failures=max_failures,
        )
        self.workers = self.supervisor.workers
        try:
            with span("start_workers"):
                self.supervisor.start()
        except BaseException:
            self.close()
            raise
        # Copy the specs from the first worker.
        ready = self.supervisor.ready
        self.obs_spec = ObsSpec.from_json(dict(ready.obs_spec))
        self.action_spec = ActionSpec.from_json(dict(ready.action_spec))
        self.can_replay = ready.can_replay

    def rollout(
        self,
        policy: ActingPolicy,
        options: CollectionOptions,
        *,
        num_envs: int | None = None,
        make: Callable[..., FleetRollout] = FleetRollout,
    ) -> FleetRollout:
        """Start the only rollout of this pool, or that of the next of several policies.

        Args:
            policy: Acting policy.
            options: Collection options.
            num_envs: Environments of each worker that the policy acts in. None: all.
            make: Makes the rollout.

        Raises:
            ConfigError: There is not enough memory for the fragments, or the workers can't import
                the head or the exploration.
        """
        policy.check_importable()
        kind = FollowingTransport if self._transports else ProcessTransport
        transport = kind(self.supervisor, policy, options, num_envs)
        self._transports.append(transport)
        rollout = make(transport, policy, options, close=self.close)
        if isinstance(transport, FollowingTransport):
            self._transports[0].followers.append((transport, rollout))
        self._rollouts.append(rollout)
        return rollout

    def close(self) -> None:
        """End the workers and their descendants, and kill those that still run after 3 s."""
        if self._is_closed:
            return
        self._is_closed = True
        self.supervisor.close()
        for rollout in self._rollouts:
            rollout.store_accounting()
        for transport in self._transports:
            transport.release()
        if self._temporary_dir is not None:
            self._temporary_dir.cleanup()
