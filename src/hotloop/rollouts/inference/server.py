"""The inference process, which acts for all workers with the published weights.

It answers all pending requests as one batch, without waiting for more. Its state is in the shared
memory alone, so another process may replace it at any moment and answer the pending requests.
"""

from __future__ import annotations

import os
import select
import sys
from typing import NamedTuple

import numpy as np

from hotloop.policies import network_from_json
from hotloop.rollouts.collector import NoiseBuffer, hidden_states_after, write_next_values
from hotloop.rollouts.inference.wakeups import clear_wakeup, wake
from hotloop.rollouts.processes.channel import Channel
from hotloop.rollouts.processes.messages import Greeting, InferenceSetup
from hotloop.rollouts.processes.program import check_parent, receive, run
from hotloop.rollouts.processes.shared_memory import (
    EVALUATION,
    FIRST,
    FIRST_ENV,
    PUBLICATION,
    SERIAL,
    STOP,
    STOP_ENV,
    VERSION,
    SharedMemory,
)
from hotloop.rollouts.published_policy import PublishedPolicy
from hotloop.timing import span
from hotloop.types import Array

# Interval at which it reads the requests without a wake-up.
_POLL_S = 0.1


class HalfBatch(NamedTuple):
    """Arrays of environments that wait for actions, usually one half of a worker's.

    Attributes:
        obs: (B, *obs_shape).
        noise: Action noise, float32, (B, K).
        memory_before: Hidden state before acting, float32, (B, M).
        head: float32, (B, H).
        action: (B, *action_shape).
        value: float32, (B,).
        log_prob: float32, (B,).
        memory_after: Hidden state after acting, float32, (B, M).
    """

    obs: Array
    noise: Array
    memory_before: Array
    head: Array
    action: Array
    value: Array
    log_prob: Array
    memory_after: Array


class InferenceServer:
    """The loop of the inference process.

    Args:
        channel: Channel to the learner.
        setup: Network, and numbers of workers and environments.
        fd: Descriptor of the shared memory.
        wakeup_fds: Wake-up descriptors of this process and of all workers.
        parent_pid: The learner's process.
    """

    def __init__(
        self,
        channel: Channel,
        setup: InferenceSetup,
        fd: int,
        wakeup_fds: list[int],
        parent_pid: int,
    ) -> None:
        self._channel, self._parent_pid = channel, parent_pid
        self._wakeup_fd, *self._worker_wakeup_fds = wakeup_fds
        with span("make_policy"):
            network = network_from_json(dict(setup.network))
            self._shared = SharedMemory(
                fd,
                network,
                num_steps=setup.num_steps,
                num_workers=setup.num_workers,
                num_envs=setup.num_envs,
            )
            os.close(fd)
            self._published = PublishedPolicy(self._shared.weights, network, setup.exploration)
        self._policy = self._published.policy
        self._noise = [
            NoiseBuffer(
                self._policy,
                seed=setup.seed,
                num_envs=setup.num_envs,
                first_env=worker * setup.num_envs,
            )
            for worker in range(setup.num_workers)
        ]

    def run(self) -> None:
        """Act until the learner is gone.

        Raises:
            ChannelClosed: The learner is gone.
        """
        while True:
            if not self.answer():
                self._wait()

    def answer(self) -> bool:
        """Answer the pending requests, and return whether there were any."""
        requests, answers = self._shared.requests, self._shared.answers
        pending = np.argwhere(requests[..., SERIAL] != answers[..., SERIAL]).tolist()
        action_lines = [(worker, line) for worker, line in pending if line != EVALUATION]
        if action_lines:
            self._act(action_lines)
        for worker, line in pending:
            if line == EVALUATION:
                self._evaluate(worker)
        return bool(pending)

    def _wait(self) -> None:
        with span("wait", kind="wait"):
            ready, _, _ = select.select([self._wakeup_fd, self._channel.socket], [], [], _POLL_S)
        clear_wakeup(self._wakeup_fd)
        if self._channel.socket in ready:
            self._channel.receive(block=False)
        elif not ready:
            check_parent(self._parent_pid)

    def _act(self, lines: list[tuple[int, int]]) -> None:
        """Choose actions for the (worker, line) requests with the first one's publication."""
        publications = self._shared.requests[..., PUBLICATION]
        number = int(publications[tuple(lines[0])])
        lines = [line for line in lines if publications[line] == number]
        self._load(number)
        halves = [self._half_batch(worker, line) for worker, line in lines]
        with span("act"):
            # Exploratory actions need no forward pass, unless there is a hidden state.
            is_recurrent, noises = self._policy.memory_size > 0, [half.noise for half in halves]
            needs_forward = [is_recurrent or self._policy.needs_head(noise) for noise in noises]
            self._forward(
                [half for half, needs in zip(halves, needs_forward, strict=True) if needs]
            )
            # Halves may be at different steps, which have different noise.
            for half in halves:
                self._policy.choose(half.head, half.noise, half.action)
                if self._policy.has_value:
                    # Computed here because another policy may evaluate the rows later.
                    step_arrays = (half.head[None], half.noise[None], half.action[None])
                    half.log_prob[...] = self._policy.log_prob(*step_arrays)[0]
        self._answer(lines)

    def _forward(self, halves: list[HalfBatch]) -> None:
        """Run the network for all halves as one batch."""
        if len(halves) == 1:
            half = halves[0]
            self._run_network(
                half.obs, half.memory_before, half.head, half.value, half.memory_after
            )
        elif halves:
            with span("copy_obs", kind="transfer"):
                obs = np.concatenate([half.obs for half in halves])
                memory_before = np.concatenate([half.memory_before for half in halves])
            # Outputs, which need no initial values.
            head = np.empty((len(obs), halves[0].head.shape[1]), np.float32)
            value, memory_after = np.empty(len(obs), np.float32), np.empty_like(memory_before)
            self._run_network(obs, memory_before, head, value, memory_after)
            with span("copy_outputs", kind="transfer"):
                start = 0
                for half in halves:
                    stop = start + len(half.obs)
                    half.head[...] = head[start:stop]
                    if self._policy.has_value:
                        half.value[...] = value[start:stop]
                    half.memory_after[...] = memory_after[start:stop]
                    start = stop

    def _run_network(
        self, obs: Array, memory_before: Array, head: Array, value: Array, memory_after: Array
    ) -> None:
        """Write `head`, `memory_after`, and `value` if the network has one; see `HalfBatch`."""
        policy = self._policy
        memory: Array | None = None
        if policy.memory_size:
            memory = memory_after
            np.copyto(memory, memory_before)
        with span("forward"):
            network_value = policy.head_and_value(obs, head, memory)[1]
            if network_value is not None:
                value[...] = network_value

    def _evaluate(self, worker: int) -> None:
        """Write `next_value` of rows that a worker has collected."""
        policy = self._policy
        request = self._shared.requests[worker, EVALUATION].tolist()
        self._load(request[PUBLICATION])
        with span("evaluate"):
            memory = self._shared.workers[worker]
            slot_index, start = memory.slot_and_step(request[FIRST])
            stop = start + request[STOP] - request[FIRST]
            rows = memory.slots[slot_index].fragment.rows(start, stop)
            last_memory: Array | None = None
            states_after: Array | None = None
            if policy.memory_size:
                last_memory = rows.last_memory
                if rows.truncated.any():
                    states_after = hidden_states_after(policy, rows)
            last_value = policy.value(rows.last_obs, last_memory)
            write_next_values(policy, rows, last_value, states_after)
        self._answer([(worker, EVALUATION)])

    def _load(self, number: int) -> None:
        """Load a publication, or the newest one if `number` is negative."""
        self._published.load(self._shared.weights.newest if number < 0 else number)

    def _half_batch(self, worker: int, line: int) -> HalfBatch:
        request = self._shared.requests[worker, line].tolist()
        row, first, stop = request[FIRST], request[FIRST_ENV], request[STOP_ENV]
        memory = self._shared.workers[worker]
        slot_index, t = memory.slot_and_step(row)
        slot = memory.slots[slot_index]
        fragment = slot.fragment
        memory_after = slot.memories[t + 1] if slot.memories else fragment.last_memory
        noise = self._noise[worker].steps(row, 1)[0]
        return HalfBatch(
            obs=fragment.obs[t, first:stop],
            noise=noise[first:stop],
            memory_before=fragment.memory[t, first:stop],
            head=slot.head[t, first:stop],
            action=fragment.action[t, first:stop],
            value=fragment.value[t, first:stop],
            log_prob=fragment.log_prob[t, first:stop],
            memory_after=memory_after[first:stop],
        )

    def _answer(self, lines: list[tuple[int, int]]) -> None:
        requests, answers = self._shared.requests, self._shared.answers
        for line in lines:
            answers[line][VERSION] = self._policy.version
            answers[line][SERIAL] = requests[line][SERIAL]
        self._shared.num_answers[0] += 1
        for worker in {worker for worker, _ in lines}:
            wake(self._worker_wakeup_fds[worker])


def _serve(channel: Channel, greeting: Greeting, parent_pid: int) -> None:
    with span("wait", kind="wait"):
        setup, _, fd = receive(channel, InferenceSetup)
    InferenceServer(channel, setup, fd, list(greeting.wakeup_fds), parent_pid).run()


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], _serve))
