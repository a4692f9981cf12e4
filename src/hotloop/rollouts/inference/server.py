"""The inference process, which acts for all workers with the published weights.

It answers all pending requests as one batch, without waiting for more. All its state is in the
shared memory, so another process may replace it at any moment and answer the pending requests.
"""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

import numpy as np

from hotloop.policies import network_from_json
from hotloop.rollouts.collector import write_next_values
from hotloop.rollouts.inference.batching import run_network, split_requests
from hotloop.rollouts.inference.wakeups import wake
from hotloop.rollouts.noise_buffer import make_noise_buffer
from hotloop.rollouts.processes.channel import Channel
from hotloop.rollouts.processes.messages import Greeting, InferenceSetup
from hotloop.rollouts.processes.program import receive, run, wait_for_wakeup
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


class HalfBatch(NamedTuple):
    """Arrays of environments that wait for actions, usually one half of a worker's.

    Attributes:
        obs: (B, *obs_shape).
        mask: Allowed actions, bool, (B, M).
        noise: Action noise, float32, (B, K).
        memory: Hidden state before acting, float32, (B, M).
        head: float32, (B, H).
        action: (B, *action_shape).
        value: float32, (B,).
        log_prob: float32, (B,).
        memory_after: Hidden state after acting, float32, (B, M).
    """

    obs: Array
    mask: Array
    noise: Array
    memory: Array
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
            make_noise_buffer(
                self._policy, setup.seed, worker * setup.num_envs, memory.episode_starts
            )
            for worker, memory in enumerate(self._shared.workers)
        ]

    def run(self) -> None:
        """Act until the learner is gone.

        Raises:
            ChannelClosed: The learner is gone.
        """
        while True:
            if not self.answer():
                with span("wait", kind="wait"):
                    wait_for_wakeup(self._wakeup_fd, self._channel, self._parent_pid)

    def answer(self) -> bool:
        """Answer the pending requests, and return whether there were any."""
        requests, answers = self._shared.requests, self._shared.answers
        pending = np.argwhere(requests[..., SERIAL] != answers[..., SERIAL]).tolist()
        action_requests = [(worker, kind) for worker, kind in pending if kind != EVALUATION]
        if action_requests:
            self._act(action_requests)
        for worker, kind in pending:
            if kind == EVALUATION:
                self._evaluate(worker)
        return bool(pending)

    def _act(self, ids: list[tuple[int, int]]) -> None:
        """Choose actions for the requests, (worker, kind), that use the first one's publication."""
        publications, policy = self._shared.requests[..., PUBLICATION], self._policy
        ids, _ = split_requests(ids, publications.__getitem__)
        self._load(int(publications[ids[0]]))
        halves = [self._half_batch(worker, kind) for worker, kind in ids]
        with span("act"):
            # Exploratory actions need no forward pass, unless there is a hidden state.
            inputs = [
                half for half in halves if policy.memory_size or policy.needs_head(half.noise)
            ]
            outputs = run_network(policy, [x.obs for x in inputs], [x.memory for x in inputs])
            with span("copy_outputs", kind="transfer"):
                for half, (head, value, memory) in zip(inputs, outputs, strict=True):
                    half.head[...] = head
                    if value is not None:
                        half.value[...] = value
                    if memory is not None:
                        half.memory_after[...] = memory
            # The halves may be at different steps, and each step has its own noise.
            for half in halves:
                policy.choose(half.head, half.noise, half.action, half.mask)
                if policy.has_value:
                    # Compute log-probabilities now, because another policy may evaluate the rows
                    # later.
                    step_arrays = (half.head[None], half.noise[None], half.action[None])
                    half.log_prob[...] = policy.log_prob(*step_arrays)[0]
        self._answer(ids)

    def _evaluate(self, worker: int) -> None:
        """Write `next_value` of rows that a worker has collected."""
        request = self._shared.requests[worker, EVALUATION].tolist()
        self._load(request[PUBLICATION])
        with span("evaluate"):
            memory = self._shared.workers[worker]
            slot_index, start = memory.slot_and_step(request[FIRST])
            stop = start + request[STOP] - request[FIRST]
            write_next_values(self._policy, memory.slots[slot_index].fragment.rows(start, stop))
        self._answer([(worker, EVALUATION)])

    def _load(self, number: int) -> None:
        """Load a publication, or the newest one if `number` is negative."""
        self._published.load(self._shared.weights.newest if number < 0 else number)

    def _half_batch(self, worker: int, kind: int) -> HalfBatch:
        request = self._shared.requests[worker, kind].tolist()
        row, first, stop = request[FIRST], request[FIRST_ENV], request[STOP_ENV]
        memory = self._shared.workers[worker]
        slot_index, t = memory.slot_and_step(row)
        slot = memory.slots[slot_index]
        fragment = slot.fragment
        memory_after = slot.memories[t + 1] if slot.memories else fragment.last_memory
        return HalfBatch(
            obs=fragment.obs[t, first:stop],
            mask=fragment.mask[t, first:stop],
            noise=self._noise[worker].row(row, slice(first, stop)),
            memory=fragment.memory[t, first:stop],
            head=slot.head[t, first:stop],
            action=fragment.action[t, first:stop],
            value=fragment.value[t, first:stop],
            log_prob=fragment.log_prob[t, first:stop],
            memory_after=memory_after[first:stop],
        )

    def _answer(self, ids: list[tuple[int, int]]) -> None:
        requests, answers = self._shared.requests, self._shared.answers
        for request_id in ids:
            answers[request_id][VERSION] = self._policy.version
            answers[request_id][SERIAL] = requests[request_id][SERIAL]
        self._shared.num_answers[0] += 1
        for worker in {worker for worker, _ in ids}:
            wake(self._worker_wakeup_fds[worker])


def _serve(channel: Channel, greeting: Greeting, parent_pid: int) -> None:
    with span("wait", kind="wait"):
        setup, _, fd = receive(channel, InferenceSetup)
    InferenceServer(channel, setup, fd, list(greeting.wakeup_fds), parent_pid).run()


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], _serve))
