"""A worker: its own program, which steps its environments and acts in them by itself.

`WorkerPool` starts it with a descriptor and the learner's process number. It imports neither torch
nor the user's main module. It ends when the learner closes its end of the channel, or dies.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from hotloop import timing
from hotloop.envs import VectorEnv, make_vec
from hotloop.errors import EnvironmentFailure, HotloopError, MaskError, NonFiniteStep
from hotloop.policies import ActingPolicy, Exploration, network_from_json
from hotloop.rollouts.collector import Collector, Slot
from hotloop.rollouts.state import memory_of, running_episodes
from hotloop.rollouts.workers.channel import Channel, Closed
from hotloop.rollouts.workers.messages import Failure, Greeting, Ready, Resumed, Setup
from hotloop.rollouts.workers.shared_memory import (
    ACTING,
    BEGUN,
    DONE,
    EPISODE,
    EVALUATING,
    GRANTS,
    NOBODY_WAITS,
    STARTED,
    STEPPED,
    WAITING,
    SharedMemory,
    WorkerMemory,
)
from hotloop.streams import steady_output
from hotloop.system.processes import private_bytes
from hotloop.timing import span
from hotloop.types import Array

# How long a batch of rows that are evaluated together should take.
CHUNK_S = 0.002
# The learner is told when there is what it waits for, and not of each row: being woken for those of
# 24 workers took it a fifth of a core. Where it waits for something else too, it is told so often.
TELL_S = 0.002
# A waiting worker looks by itself so often, should a nudge have been missed.
_LOOK_S = 0.1
_Kind = TypeVar("_Kind", Greeting, Setup)


def main(arguments: list[str]) -> int:
    """Serve the learner, by its process number, at the other end of a descriptor."""
    descriptor, parent = map(int, arguments)
    channel = Channel(socket.socket(fileno=descriptor))
    try:
        greeting, _, _ = _receive(channel, Greeting)
        # Who deletes or moves a run's directory does not want it made again.
        if os.path.isdir(greeting.timing_dir):
            timing.start(greeting.timing_dir, component=f"worker-{greeting.worker}")
        try:
            with steady_output():  # what environments print may have nowhere to go
                _serve(channel, greeting, parent)
        except Closed:
            raise
        except Exception as error:  # also a defect, or what an environment raises outside of calls
            _tell(channel, error, is_final=True)
            return 1
    except Closed:
        pass
    return 0


def _serve(channel: Channel, greeting: Greeting, parent: int) -> None:
    failures: list[HotloopError] = []

    def on_failure(error: HotloopError) -> None:
        failures.append(error)
        _tell(channel, error, is_final=False)
        _look_for(parent)

    with span("make_envs"):
        envs = make_vec(
            greeting.env,
            greeting.num_envs,
            seed=greeting.seed,
            env_kwargs=greeting.env_kwargs,
            first_env=greeting.first_env,
            first_episode=greeting.first_episode,
            stagger=greeting.stagger,
            on_failure=on_failure,
            num_threads=1,
            action_masks=greeting.action_masks,
            log_info=greeting.log_info,
        )
    try:
        channel.send(
            Ready(
                obs_spec=envs.obs_spec.to_json(),
                action_spec=envs.action_spec.to_json(),
                can_replay=envs.can_replay,
                private_bytes=private_bytes(),
            )
        )
        setup, arrays, fd = _receive(channel, Setup)
        Worker(channel, envs, failures, greeting, setup, fd, parent).run(arrays)
    except Closed:
        envs.close()
        raise
    # What fails is told first, and ended by the learner: closing it may fail too, or hang.


class Worker:
    """The loop of a worker.

    Args:
        channel: to the learner.
        envs: its environments.
        failures: of environments that were made anew, since the list was emptied.
        greeting: who it is.
        setup: what to collect, and from which row on.
        fd: the shared memory.
        parent: the learner's process.
    """

    def __init__(
        self,
        channel: Channel,
        envs: VectorEnv,
        failures: list[HotloopError],
        greeting: Greeting,
        setup: Setup,
        fd: int,
        parent: int,
    ) -> None:
        self._channel = channel
        self._parent = parent
        self._envs = envs
        self._failures = failures
        self._setup = setup
        network = network_from_json(dict(setup.network))
        shared = SharedMemory(
            fd,
            network,
            num_steps=setup.num_steps,
            num_workers=setup.num_workers,
            num_envs=envs.num_envs,
        )
        os.close(fd)
        self._shared = shared
        self._weights = shared.weights
        self._worker = greeting.worker
        self._memory: WorkerMemory = shared.workers[self._worker]
        self._words = self._memory.words
        self._number, snapshot = self._weights.read(self._weights.newest)
        # What all of its parameters lie in.
        flat = next(iter(snapshot.params.values())).base
        assert flat is not None
        self._flat: Array = flat
        exploration = None
        if (given := setup.exploration) is not None:
            exploration = Exploration(**{**given, "epsilon": tuple(given["epsilon"])})
        self._policy = ActingPolicy(network, snapshot, exploration=exploration)
        self._collector = Collector(
            envs, self._policy, seed=setup.seed, first_env=greeting.first_env
        )
        self._row = self._collector.vector_steps = setup.first_row
        self._told_at, self._told_row = 0.0, -1
        # Seconds of a row, smoothed: as many are collected at once as take `CHUNK_S`.
        self._row_s = CHUNK_S

    def run(self, arrays: Mapping[str, Array]) -> None:
        """Collect until the learner is gone.

        Raises:
            Closed: it is.
            HotloopError: an environment can't be mended, or the policy gave NaN.
        """
        words, num_steps = self._words, self._setup.num_steps
        in_whole = self._setup.schedule == "barrier"
        self._begin(arrays)
        while True:
            if self._room() <= 0:
                self._wait()
            which, t = self._memory.place(self._row)
            slot = self._memory.slots[which]
            if in_whole:
                first, stop = 0, num_steps
                self._load(words[GRANTS + which])
            else:
                room = min(num_steps - t, self._room())
                first, stop = t, t + max(1, min(room, int(CHUNK_S / self._row_s)))
                self._load_newest()
            began = time.monotonic()
            # Said of all rows beforehand: 2 µs less for each.
            self._memory.versions[which][t:stop] = self._policy.version
            self._table = self._memory.episodes[which]
            self._table["length"][t:stop] = 0
            self._collector.collect(slot, t, stop, self)
            self._evaluate(slot, first, stop)
            now = time.monotonic()
            self._row_s += 0.1 * ((now - began) / (stop - t) - self._row_s)
            words[ACTING] = -1
            if self._room() <= 0 or (now - self._told_at >= TELL_S and self._is_waited_for()):
                self._told_at = now
                self._tell_done()
                _look_for(self._parent)

    # --- what the collector tells of each step ----------------------------------------------------

    def begins(self) -> None:
        """See `Watch`."""
        words = self._words
        words[STARTED] = time.monotonic_ns()
        words[BEGUN] = self._row + 1

    def ended(self, t: int) -> None:
        """See `Watch`."""
        words, envs = self._words, self._envs
        episodes = envs.pop_episodes()
        if episodes or self._failures:
            self._failures.clear()
            table = self._table[t]
            first_env = self._memory.slots[0].fragment.first_env
            for one in episodes:
                i = one.env - first_env
                table[i] = one.undiscounted_return, one.length, one.episode, 0, len(one.info)
                if one.info:
                    self._memory.write_info(self._row, i, one.info)
            table["following"] = running = self._running()
            self._note_episodes(running)
        self._row += 1
        words[STARTED] = 0
        words[STEPPED] = self._row

    # --- the rest ---------------------------------------------------------------------------------

    def _room(self) -> int:
        """Rows that may be begun now."""
        is_shared_out = self._setup.schedule == "variable"
        return self._shared.room(self._worker, is_shared_out=is_shared_out)

    def _is_waited_for(self) -> bool:
        """Whether the learner can now take what it waits for."""
        wanted = self._shared.wanted[0]
        if wanted == NOBODY_WAITS:
            return False
        return sum([words[DONE] for words in self._shared.words]) >= wanted

    def _begin(self, arrays: Mapping[str, Array]) -> None:
        """Bring the environments to where they are to begin."""
        words, setup = self._words, self._setup
        self._step_begins()
        if setup.resume is not None:
            restarted_envs = self._collector.resume(
                running_episodes(arrays, setup.resume),
                memory_of(arrays, 0, self._envs.num_envs),
                on_step=self._step_begins,
            )
            obs = self._collector.obs
            assert obs is not None
            self._channel.send(Resumed(restarted_envs=restarted_envs), arrays={"obs": obs})
        else:
            self._collector.begin(first_episode=setup.first_episode)
        self._note_episodes(self._running())
        words[STARTED] = 0
        # What the worker before this one has stepped and not evaluated.
        done = words[DONE]
        if done < self._row:
            which, t = self._memory.place(done)
            first, stop = t, t + self._row - done
            if setup.schedule == "barrier":
                first, stop = 0, setup.num_steps
                if self._row % stop:
                    return  # when the rest of them is there, too
                self._load(words[GRANTS + which])
            else:
                self._load(self._weights.newest)
            self._evaluate(self._memory.slots[which], first, stop)

    def _step_begins(self) -> None:
        """Environments are reset, or one is stepped again that another run has stepped."""
        self._words[STARTED] = time.monotonic_ns()

    def _evaluate(self, slot: Slot, first: int, stop: int) -> None:
        """Evaluate rows, the last ones of all; they may be taken then."""
        words = self._words
        words[EVALUATING] = 1
        self._collector.evaluate(slot, first, stop)
        words[EVALUATING] = 0
        words[DONE] = self._row

    def _running(self) -> list[int]:
        """Numbers of the episodes that run now."""
        return [number for number, _ in self._envs.running()]

    def _note_episodes(self, running: list[int]) -> None:
        """Tell which numbers were used, should another process have to go on."""
        # A vector environment may begin its next episode in a call of its own.
        greatest = max(running) + (not self._envs.can_replay)
        self._words[EPISODE] = max(self._words[EPISODE], greatest)

    def _tell_done(self) -> None:
        """Have the learner look at how far this worker has come."""
        self._told_row = self._row
        self._channel.nudge()

    def _load(self, number: int) -> None:
        """Act by a publication from now on."""
        if number == self._number:
            return
        with span("load_weights", kind="transfer"):
            self._number, version, scale = self._weights.read_into(self._flat, number)
            if scale is None:
                self._policy.refresh(version)
            else:
                self._policy.load(replace(self._policy.snapshot, version=version, obs_scale=scale))

    def _load_newest(self) -> None:
        """Act by what was published last, and let the learner know before it publishes more."""
        while True:
            self._load(self._weights.newest)
            self._words[ACTING] = self._policy.version
            if self._weights.newest == self._number:
                return

    def _wait(self) -> None:
        words = self._words
        with span("wait", kind="wait"):
            words[WAITING] = 1
            if self._told_row != self._row:
                self._tell_done()
            while self._room() <= 0:
                ready, _, _ = select.select([self._channel.socket], [], [], _LOOK_S)
                if ready:
                    self._channel.receive(block=False)
                else:
                    _look_for(self._parent)
            words[WAITING] = 0


def _receive(channel: Channel, kind: type[_Kind]) -> tuple[_Kind, Mapping[str, Array], int]:
    """Wait for a message, past the nudges before it."""
    packet = channel.receive(block=True)
    while packet is not None and packet.message is None:
        packet = channel.receive(block=True)
    assert packet is not None
    assert isinstance(packet.message, kind)
    return packet.message, packet.arrays, packet.fd


def _tell(channel: Channel, error: BaseException, *, is_final: bool) -> None:
    """Say what went wrong, in the learner's words and with the traceback of here."""
    can_be_mended = isinstance(error, EnvironmentFailure) and not isinstance(
        error, NonFiniteStep | MaskError
    )
    failure = Failure(
        message=str(error),
        is_final=is_final,
        can_be_mended=can_be_mended,
        type=type(error).__name__,
        traceback="".join(traceback.format_exception(error)),
    )
    with contextlib.suppress(Closed):
        channel.send(failure)


def _look_for(parent: int) -> None:
    """Make sure that the learner lives.

    Raises:
        Closed: it does not; another process may hold its end of the channel open.
    """
    if os.getppid() != parent:
        raise Closed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
