"""The inference process: acts for all workers, with the published weights.

It takes all requests that there are into one batch and waits for no more. What it has done is known
from the shared memory alone, so another process may take its place at any moment: what was not
answered is done again.
"""

from __future__ import annotations

import os
import select
import sys
from typing import NamedTuple

import numpy as np

from hotloop.policies import network_from_json
from hotloop.rollouts.collector import NoiseAhead, remembered_after, value_successors
from hotloop.rollouts.inference.bells import hush, ring
from hotloop.rollouts.published import PublishedPolicy
from hotloop.rollouts.workers.channel import Channel
from hotloop.rollouts.workers.messages import Greeting, InferenceSetup
from hotloop.rollouts.workers.program import look_for, receive, run
from hotloop.rollouts.workers.shared_memory import (
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
from hotloop.timing import span
from hotloop.types import Array

# It looks by itself so often, should nobody ring.
_LOOK_S = 0.1


class Half(NamedTuple):
    """A row of some environments that wait for actions: what is read, and what is written.

    Attributes:
        obs: (B, *obs_shape).
        noise: float32, (B, K).
        before: float32, (B, M), what is remembered.
        head: float32, (B, H).
        action: (B, *action_shape).
        value: float32, (B,).
        log_prob: float32, (B,).
        after: float32, (B, M), what is remembered then.
    """

    obs: Array
    noise: Array
    before: Array
    head: Array
    action: Array
    value: Array
    log_prob: Array
    after: Array


class Inference:
    """The loop of the process.

    Args:
        channel: to the learner.
        setup: for whom it acts.
        fd: the shared memory.
        bells: its own, and those of all workers.
        parent: the learner's process.
    """

    def __init__(
        self, channel: Channel, setup: InferenceSetup, fd: int, bells: list[int], parent: int
    ) -> None:
        self._channel, self._parent = channel, parent
        self._bell, *self._bells = bells
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
            NoiseAhead(
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
            Closed: it is.
        """
        while True:
            if not self.answer():
                self._wait()

    def answer(self) -> bool:
        """Answer the requests that there are, and say whether there are any."""
        requests, answers = self._shared.requests, self._shared.answers
        asked = np.argwhere(requests[..., SERIAL] != answers[..., SERIAL]).tolist()
        acting = [(worker, line) for worker, line in asked if line != EVALUATION]
        if acting:
            self._act(acting)
        for worker, line in asked:
            if line == EVALUATION:
                self._evaluate(worker)
        return bool(asked)

    def _wait(self) -> None:
        with span("wait", kind="wait"):
            ready, _, _ = select.select([self._bell, self._channel.socket], [], [], _LOOK_S)
        hush(self._bell)
        if self._channel.socket in ready:
            self._channel.receive(block=False)
        elif not ready:
            look_for(self._parent)

    def _act(self, asked: list[tuple[int, int]]) -> None:
        """Choose actions for all who act by the same publication as the first one."""
        publications = self._shared.requests[..., PUBLICATION]
        number = int(publications[tuple(asked[0])])
        asked = [one for one in asked if publications[one] == number]
        self._load(number)
        halves = [self._half(worker, line) for worker, line in asked]
        with span("act"):
            # Whoever only explores needs no network.
            remembers, noises = self._policy.memory_size > 0, [half.noise for half in halves]
            needy = [remembers or self._policy.needs_head(noise) for noise in noises]
            self._forward([half for half, needs in zip(halves, needy, strict=True) if needs])
            # Of one step each, and with the noise of that.
            for half in halves:
                self._policy.choose(half.head, half.noise, half.action)
                if self._policy.has_value:
                    # By the policy that acts: it may be another one when the rows are evaluated.
                    of_one_step = (half.head[None], half.noise[None], half.action[None])
                    half.log_prob[...] = self._policy.log_prob(*of_one_step)[0]
        self._answer(asked)

    def _forward(self, halves: list[Half]) -> None:
        """Ask the network for all of them at once."""
        if len(halves) == 1:
            half = halves[0]
            self._ask_network(half.obs, half.before, half.head, half.value, half.after)
        elif halves:
            with span("copy_obs", kind="transfer"):
                obs = np.concatenate([half.obs for half in halves])
                before = np.concatenate([half.before for half in halves])
            # What it writes: nothing of it is read before.
            head = np.empty((len(obs), halves[0].head.shape[1]), np.float32)
            value, after = np.empty(len(obs), np.float32), np.empty_like(before)
            self._ask_network(obs, before, head, value, after)
            with span("copy_outputs", kind="transfer"):
                start = 0
                for half in halves:
                    stop = start + len(half.obs)
                    half.head[...] = head[start:stop]
                    if self._policy.has_value:
                        half.value[...] = value[start:stop]
                    half.after[...] = after[start:stop]
                    start = stop

    def _ask_network(
        self, obs: Array, before: Array, head: Array, value: Array, after: Array
    ) -> None:
        """Write `head`, `value` where there is one, and `after`: see `Half`."""
        policy = self._policy
        memory: Array | None = None
        if policy.memory_size:
            memory = after
            np.copyto(memory, before)
        with span("forward"):
            told = policy.head_and_value(obs, head, memory)[1]
            if told is not None:
                value[...] = told

    def _evaluate(self, worker: int) -> None:
        """Value what follows rows that a worker has made."""
        policy = self._policy
        request = self._shared.requests[worker, EVALUATION].tolist()
        self._load(request[PUBLICATION])
        with span("evaluate"):
            memory = self._shared.workers[worker]
            which, start = memory.place(request[FIRST])
            stop = start + request[STOP] - request[FIRST]
            part = memory.slots[which].fragment.rows(start, stop)
            last_memory: Array | None = None
            remembered: Array | None = None
            if policy.memory_size:
                last_memory = part.last_memory
                if part.truncated.any():
                    remembered = remembered_after(policy, part)
            last_value = policy.value(part.last_obs, last_memory)
            value_successors(policy, part, last_value, remembered)
        self._answer([(worker, EVALUATION)])

    def _load(self, number: int) -> None:
        """Act by a publication, or by the newest one."""
        self._published.load(self._shared.weights.newest if number < 0 else number)

    def _half(self, worker: int, line: int) -> Half:
        request = self._shared.requests[worker, line].tolist()
        row, first, stop = request[FIRST], request[FIRST_ENV], request[STOP_ENV]
        memory = self._shared.workers[worker]
        which, t = memory.place(row)
        slot = memory.slots[which]
        fragment = slot.fragment
        after = slot.memories[t + 1] if slot.memories else fragment.last_memory
        noise = self._noise[worker].of(row, 1)[0]
        return Half(
            obs=fragment.obs[t, first:stop],
            noise=noise[first:stop],
            before=fragment.memory[t, first:stop],
            head=slot.head[t, first:stop],
            action=fragment.action[t, first:stop],
            value=fragment.value[t, first:stop],
            log_prob=fragment.log_prob[t, first:stop],
            after=after[first:stop],
        )

    def _answer(self, asked: list[tuple[int, int]]) -> None:
        """Say that requests are done, and wake who waits for them."""
        requests, answers = self._shared.requests, self._shared.answers
        for one in asked:
            answers[one][VERSION] = self._policy.version
            answers[one][SERIAL] = requests[one][SERIAL]
        self._shared.progress[0] += 1
        for worker in {worker for worker, _ in asked}:
            ring(self._bells[worker])


def _serve(channel: Channel, greeting: Greeting, parent: int) -> None:
    with span("wait", kind="wait"):
        setup, _, fd = receive(channel, InferenceSetup)
    Inference(channel, setup, fd, list(greeting.bells), parent).run()


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], _serve))
