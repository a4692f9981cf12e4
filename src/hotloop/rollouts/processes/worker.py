"""The worker program, which steps environments and acts in them.

It acts with its own copy of the policy, or through the inference process. It imports torch only for
networks that need it, and never imports the user's main module.
"""

from __future__ import annotations

import base64
import functools
import itertools
import pickle
import select
import sys
import time
import traceback
from collections.abc import Mapping, Sequence

from hotloop.base.importing import describe_exception
from hotloop.base.processes import private_bytes
from hotloop.envs import (
    DoubleBufferedEnvs,
    EnvSpec,
    VectorEnv,
    make_double_buffered,
    make_vec,
    seeded_generators,
)
from hotloop.envs.game_factory import assign_by_index, make_views
from hotloop.envs.pettingzoo_envs import PettingZooEnvs
from hotloop.errors import HotloopError
from hotloop.rollouts.env_calls import EnvCall
from hotloop.rollouts.inference.central_collector import CentralCollector
from hotloop.rollouts.inference.wakeups import wake
from hotloop.rollouts.processes.channel import Channel, ChannelClosed
from hotloop.rollouts.processes.joint_collector import FollowingRows, JointCollector
from hotloop.rollouts.processes.local_collector import LocalCollector
from hotloop.rollouts.processes.messages import (
    CallRequest,
    CallResult,
    Greeting,
    Packet,
    Ready,
    Setup,
    WorkerResumed,
)
from hotloop.rollouts.processes.program import (
    POLL_S,
    check_parent,
    receive,
    run,
    send_failure,
    wait_for_wakeup,
)
from hotloop.rollouts.processes.row_counters import RowCounters
from hotloop.rollouts.processes.shared_memory import (
    ACTING,
    DONE,
    EVALUATING,
    GRANTS,
    NO_WAKE_TARGET,
    STARTED,
    WAITING,
    map_memory,
)
from hotloop.rollouts.state import running_episodes, saved_hidden_states
from hotloop.timing import span
from hotloop.types import Array

# Minimum interval between wake-ups of a learner whose wake target is reached. Waking it for every
# row of 24 workers took a fifth of a core.
NOTIFY_S = 0.002


def _serve(channel: Channel, greeting: Greeting, parent_pid: int) -> None:
    """Make the environments, receive the setup, and collect until the learner stops."""
    failures: list[HotloopError] = []

    def on_failure(error: HotloopError) -> None:
        failures.append(error)
        send_failure(channel, error, is_final=False)
        check_parent(parent_pid)

    spec = EnvSpec.from_json(greeting.env)
    with span("make_envs"), seeded_generators(spec, greeting.restarts):
        views = _make_views(spec, greeting)
        if views:
            envs: VectorEnv = next(iter(views.values()))
        else:
            make = make_double_buffered if greeting.wakeup_fds else make_vec
            envs = make(spec, greeting.num_envs, on_failure=on_failure, num_threads=1)
    try:
        channel.send(
            Ready(
                obs_spec=envs.obs_spec.to_json(),
                action_spec=envs.action_spec.to_json(),
                can_replay=envs.can_replay,
                private_bytes=private_bytes(),
            )
        )
        answer = functools.partial(answer_call, channel, envs)
        setup, arrays, fd = receive(channel, Setup, on_other=answer)
        followers = [
            FollowingRows(
                name, view, *receive(channel, Setup, on_other=answer), greeting.worker, previous
            )
            for (_, previous), (name, view) in itertools.pairwise(views.items())
        ]
        worker = Worker(channel, envs, failures, greeting, setup, fd, parent_pid, followers)
        worker.run(arrays)
    except ChannelClosed:
        envs.close()
        raise
    # After any other error the learner ends this process: closing the environments may fail or
    # hang.


def _make_views(spec: EnvSpec, greeting: Greeting) -> dict[str, PettingZooEnvs]:
    """Return the agents of each of several policies by name, empty for a single policy."""
    if not greeting.agents:
        return {}
    return make_views(spec, greeting.num_envs, assign_by_index(greeting.agents))


class Worker(RowCounters):
    """The loop of a worker, which observes its steps; see `HalfStepObserver`.

    Args:
        channel: Channel to the learner.
        envs: Environments of the worker.
        failures: Failures of environments that were replaced; emptied at each row.
        greeting: The learner's greeting.
        setup: Collection settings and first row.
        fd: Descriptor of the shared memory.
        parent_pid: The learner's process.
        followers: The policies that act within the steps of the first one.
    """

    def __init__(
        self,
        channel: Channel,
        envs: VectorEnv,
        failures: list[HotloopError],
        greeting: Greeting,
        setup: Setup,
        fd: int,
        parent_pid: int,
        followers: Sequence[FollowingRows] = (),
    ) -> None:
        shared = map_memory(fd, envs, setup)  # the memory that all processes share
        super().__init__(shared.workers[greeting.worker], envs, failures, setup.first_row)
        self._channel = channel
        self._parent_pid = parent_pid
        self._setup = setup
        self._shared = shared
        self._weights = shared.weights
        self._worker = greeting.worker
        self._notified_at_s, self._notified_row = 0.0, -1
        # Make the collector, for central or local inference.
        self._collector: LocalCollector | CentralCollector | JointCollector
        if setup.network is None:
            assert isinstance(envs, DoubleBufferedEnvs)
            wakeup_fd, inference_wakeup_fd = greeting.wakeup_fds
            self._collector = CentralCollector(
                envs,
                shared,
                self._worker,
                first_row=setup.first_row,
                has_value=setup.outputs["has_value"],
                has_episode_noise=setup.has_episode_noise,
                wake_inference=functools.partial(wake, inference_wakeup_fd),
                wait=functools.partial(wait_for_wakeup, wakeup_fd, channel, parent_pid),
            )
        else:
            local = LocalCollector(envs, setup, shared, self._worker)
            self._collector = local
            if followers:
                assert isinstance(envs, PettingZooEnvs)
                self._collector = JointCollector(local, envs, followers, channel)
        # Smoothed seconds of a row, which determine how many rows fill `chunk_s`.
        self._row_s = self._collector.chunk_s

    def run(self, arrays: Mapping[str, Array]) -> None:
        """Collect until the learner is gone.

        Raises:
            ChannelClosed: The learner is gone.
            HotloopError: An environment can't be replaced, or the policy's outputs were NaN.
        """
        words, setup, collector = self._words, self._setup, self._collector
        num_steps, is_barrier = setup.num_steps, setup.schedule == "barrier"
        self._begin(arrays)
        while True:
            self._answer_calls()
            # A row whose actions were requested must be collected.
            if collector.requested_version < 0 and self._rows_allowed() <= 0:
                self._wait()
            slot_index, t = self._memory.slot_and_step(self.row)
            if is_barrier:
                start, stop = 0, num_steps
                collector.load(words[GRANTS + slot_index])
            else:
                num_rows = min(num_steps - t, self._rows_allowed())
                start, stop = t, t + max(1, min(num_rows, int(collector.chunk_s / self._row_s)))
                collector.load_newest()
                if setup.in_fragments:
                    start = 0
            started_at_s = time.monotonic()
            self.begin_rows(slot_index, t, stop)
            collector.collect(slot_index, t, stop, self)
            # With images, the value after the last row costs as much as acting on a row.
            if stop == num_steps or not setup.in_fragments:
                self._evaluate(slot_index, start, stop)
            now = time.monotonic()
            self._row_s += 0.1 * ((now - started_at_s) / (stop - t) - self._row_s)
            words[ACTING] = collector.requested_version
            if self._rows_allowed() <= 0 or (
                now - self._notified_at_s >= NOTIFY_S and self._reaches_wake_target()
            ):
                self._notified_at_s = now
                self._notify_learner()
                check_parent(self._parent_pid)

    def on_half_step(self) -> None:
        """See `HalfStepObserver`."""
        self._words[STARTED] = 0

    def has_room(self) -> bool:
        """See `HalfStepObserver`."""
        return self._rows_allowed() > 1

    def _rows_allowed(self) -> int:
        has_total_limit = self._setup.schedule == "variable"
        return self._shared.rows_allowed(self._worker, has_total_limit=has_total_limit)

    def _reaches_wake_target(self) -> bool:
        wake_target = self._shared.wake_target[0]
        if wake_target == NO_WAKE_TARGET:
            return False
        return sum([words[DONE] for words in self._shared.words]) >= wake_target

    def _begin(self, arrays: Mapping[str, Array]) -> None:
        """Reset or restore the environments, and evaluate rows that an earlier process left."""
        words, setup = self._words, self._setup
        self._record_step_start()
        if setup.resume is not None:
            restarted_envs = self._collector.resume(
                running_episodes(arrays, setup.resume),
                saved_hidden_states(arrays, 0, self._envs.num_envs),
                on_step=self._record_step_start,
            )
            obs = self._collector.obs
            assert obs is not None
            self._channel.send(WorkerResumed(restarted_envs=restarted_envs), arrays={"obs": obs})
        else:
            self._collector.begin(first_episode=setup.first_episode)
        self.record_max_episode()
        words[STARTED] = 0
        # Evaluate the rows that an earlier process has stepped and not evaluated.
        num_done = words[DONE]
        if num_done < self.row:
            slot_index, t = self._memory.slot_and_step(num_done)
            start, stop = t, t + self.row - num_done
            if setup.in_fragments:
                start, stop = 0, setup.num_steps
                if self.row % stop:
                    return  # a later call evaluates them, when the fragment is whole
            if setup.schedule == "barrier":
                self._collector.load(words[GRANTS + slot_index])
            else:
                self._collector.load(self._weights.newest)
            self._evaluate(slot_index, start, stop)

    def _record_step_start(self) -> None:
        self._words[STARTED] = time.monotonic_ns()

    def _evaluate(self, slot_index: int, start: int, stop: int) -> None:
        """Evaluate the last rows, so that the learner may take them."""
        words = self._words
        words[EVALUATING] = 1
        self._collector.evaluate(slot_index, start, stop)
        words[EVALUATING] = 0
        words[DONE] = self.row

    def _notify_learner(self) -> None:
        self._notified_row = self.row
        self._channel.nudge()

    def _answer_calls(self) -> None:
        """Make the calls that have arrived, between two rows."""
        while (packet := self._channel.receive(block=False)) is not None:
            answer_call(self._channel, self._envs, packet)

    def _wait(self) -> None:
        words = self._words
        with span("wait", kind="wait"):
            words[WAITING] = 1
            if self._notified_row != self.row:
                self._notify_learner()
            while self._rows_allowed() <= 0:
                ready, _, _ = select.select([self._channel.socket], [], [], POLL_S)
                if ready:
                    self._answer_calls()
                else:
                    check_parent(self._parent_pid)
            words[WAITING] = 0


def answer_call(channel: Channel, envs: VectorEnv, packet: Packet) -> None:
    """Make the call of a packet, and send its result or its error. Nudges are ignored."""
    if not isinstance(packet.message, CallRequest):
        return
    try:
        call: EnvCall = pickle.loads(base64.b64decode(packet.message.call))
        value = base64.b64encode(pickle.dumps(call.run(envs))).decode()
        channel.send(CallResult(value=value))
    except ChannelClosed:
        raise
    except Exception as error:  # also of unpickling, which may import a module
        is_known = isinstance(error, HotloopError)
        message = str(error) if is_known else describe_exception(error)
        trace = "".join(traceback.format_exception(error))
        channel.send(CallResult(message=message, type=type(error).__name__, traceback=trace))


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], _serve))
