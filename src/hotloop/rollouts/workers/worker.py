"""A worker: its own program, which steps its environments and acts in them by itself.

It acts by its own copy of the policy, or has the inference process act, and imports neither torch,
but for what needs it, nor the user's main module.
"""

from __future__ import annotations

import functools
import os
import select
import sys
import time
from collections.abc import Mapping
from typing import Any

from hotloop.envs import Halves, VectorEnv, make_halves, make_vec
from hotloop.errors import HotloopError
from hotloop.policies import network_from_json
from hotloop.rollouts.inference.bells import hush, ring
from hotloop.rollouts.inference.stepper import Stepper
from hotloop.rollouts.state import memory_of, running_episodes
from hotloop.rollouts.workers.acting import Acting, OwnActing
from hotloop.rollouts.workers.channel import Channel, Closed
from hotloop.rollouts.workers.messages import Greeting, Ready, Resumed, Setup
from hotloop.rollouts.workers.program import look_for, receive, run, tell
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
    Outputs,
    SharedMemory,
    WorkerMemory,
)
from hotloop.system.processes import private_bytes
from hotloop.timing import span
from hotloop.types import Array

# The learner is told when there is what it waits for, and not of each row: being woken for those of
# 24 workers took it a fifth of a core. Where it waits for something else too, it is told so often.
TELL_S = 0.002
# A waiting worker looks by itself so often, should a nudge have been missed.
_LOOK_S = 0.1


def _serve(channel: Channel, greeting: Greeting, parent: int) -> None:
    failures: list[HotloopError] = []

    def on_failure(error: HotloopError) -> None:
        failures.append(error)
        tell(channel, error, is_final=False)
        look_for(parent)

    options: dict[str, Any] = {
        "seed": greeting.seed,
        "env_kwargs": greeting.env_kwargs,
        "first_env": greeting.first_env,
        "first_episode": greeting.first_episode,
        "stagger": greeting.stagger,
        "on_failure": on_failure,
        "num_threads": 1,
        "action_masks": greeting.action_masks,
        "log_info": greeting.log_info,
    }
    with span("make_envs"):
        make = make_halves if greeting.bells else make_vec
        envs: VectorEnv = make(greeting.env, greeting.num_envs, **options)
    try:
        channel.send(
            Ready(
                obs_spec=envs.obs_spec.to_json(),
                action_spec=envs.action_spec.to_json(),
                can_replay=envs.can_replay,
                private_bytes=private_bytes(),
            )
        )
        setup, arrays, fd = receive(channel, Setup)
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
        outputs = Outputs.from_json(envs, setup.outputs)
        shared = SharedMemory(
            fd,
            outputs,
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
        self._row = setup.first_row
        self._told_at, self._told_row = 0.0, -1
        self._acting: Acting
        if setup.network is None:
            assert isinstance(envs, Halves)
            self._bell, inferences_bell = greeting.bells
            self._acting = Stepper(
                envs,
                shared,
                self._worker,
                first_row=setup.first_row,
                has_value=outputs.has_value,
                ring=functools.partial(ring, inferences_bell),
                rest=self._rest,
            )
        else:
            self._acting = OwnActing(
                envs,
                network_from_json(dict(setup.network)),
                setup.exploration,
                shared,
                self._worker,
                seed=setup.seed,
                first_row=setup.first_row,
            )
        # Seconds of a row, smoothed: as many are collected at once as take `chunk_s`.
        self._row_s = self._acting.chunk_s

    def run(self, arrays: Mapping[str, Array]) -> None:
        """Collect until the learner is gone.

        Raises:
            Closed: it is.
            HotloopError: an environment can't be mended, or the policy gave NaN.
        """
        words, setup, acting = self._words, self._setup, self._acting
        num_steps, in_whole = setup.num_steps, setup.schedule == "barrier"
        self._begin(arrays)
        while True:
            # Who has asked for actions of a row makes it.
            if acting.ahead < 0 and self._room() <= 0:
                self._wait()
            which, t = self._memory.place(self._row)
            if in_whole:
                first, stop = 0, num_steps
                acting.load(words[GRANTS + which])
            else:
                room = min(num_steps - t, self._room())
                first, stop = t, t + max(1, min(room, int(acting.chunk_s / self._row_s)))
                acting.load_newest()
                if setup.in_fragments:
                    first = 0
            began = time.monotonic()
            self._table = self._memory.episodes[which]
            self._table["length"][t:stop] = 0
            acting.collect(which, t, stop, self)
            # Of an image, what follows the last row costs as much to value as a row to act on.
            if stop == num_steps or not setup.in_fragments:
                self._evaluate(which, first, stop)
            now = time.monotonic()
            self._row_s += 0.1 * ((now - began) / (stop - t) - self._row_s)
            words[ACTING] = acting.ahead
            if self._room() <= 0 or (now - self._told_at >= TELL_S and self._is_waited_for()):
                self._told_at = now
                self._tell_done()
                look_for(self._parent)

    # --- what is told of each step ----------------------------------------------------------------

    def begins(self) -> None:
        """See `Watch`."""
        words = self._words
        words[STARTED] = time.monotonic_ns()
        words[BEGUN] = self._row + 1

    def pauses(self) -> None:
        """See `HalfWatch`."""
        self._words[STARTED] = 0

    def has_room(self) -> bool:
        """See `HalfWatch`."""
        return self._room() > 1

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
            restarted_envs = self._acting.resume(
                running_episodes(arrays, setup.resume),
                memory_of(arrays, 0, self._envs.num_envs),
                on_step=self._step_begins,
            )
            obs = self._acting.obs
            assert obs is not None
            self._channel.send(Resumed(restarted_envs=restarted_envs), arrays={"obs": obs})
        else:
            self._acting.begin(first_episode=setup.first_episode)
        self._note_episodes(self._running())
        words[STARTED] = 0
        # What the worker before this one has stepped and not evaluated.
        done = words[DONE]
        if done < self._row:
            which, t = self._memory.place(done)
            first, stop = t, t + self._row - done
            if setup.in_fragments:
                first, stop = 0, setup.num_steps
                if self._row % stop:
                    return  # when the rest of them is there, too
            if setup.schedule == "barrier":
                self._acting.load(words[GRANTS + which])
            else:
                self._acting.load(self._weights.newest)
            self._evaluate(which, first, stop)

    def _step_begins(self) -> None:
        """Environments are reset, or one is stepped again that another run has stepped."""
        self._words[STARTED] = time.monotonic_ns()

    def _evaluate(self, which: int, first: int, stop: int) -> None:
        """Evaluate rows, the last ones of all; they may be taken then."""
        words = self._words
        words[EVALUATING] = 1
        self._acting.evaluate(which, first, stop)
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
                    look_for(self._parent)
            words[WAITING] = 0

    def _rest(self) -> None:
        """Wait until the inference process may have answered."""
        ready, _, _ = select.select([self._bell, self._channel.socket], [], [], _LOOK_S)
        hush(self._bell)
        if self._channel.socket in ready:
            self._channel.receive(block=False)
        elif not ready:
            look_for(self._parent)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], _serve))
