"""Messages between the learner and a worker, sent as JSON with the extras of a `Packet`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, get_args

from hotloop.rollouts.protocol import Schedule
from hotloop.types import Array

# The worker number of the inference process.
INFERENCE = -1


@dataclass(frozen=True, kw_only=True)
class Greeting:
    """The learner's first message.

    Attributes:
        worker: Number of the worker, or `INFERENCE` for the inference process.
        component: Name of the process in its timing recording.
        timing_dir: Directory of the recording.
        wakeup_fds: Event descriptors. A worker gets its own and that of the inference process, or
            none if it acts by itself. The inference process gets its own and those of all workers.
        restarts: Number of earlier processes of this worker.
        env: The `EnvSpec` of the worker's environments, as JSON.
        num_envs: Number of the worker's environments.
        agents: Index of each agent of several policies, by policy, in the order in which they act.
            Empty: there is one policy.
    """

    worker: int
    component: str
    timing_dir: str
    wakeup_fds: Sequence[int]
    restarts: int = 0
    env: Mapping[str, Any]
    num_envs: int
    agents: Mapping[str, Sequence[int]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A worker has made its environments.

    Attributes:
        obs_spec, action_spec: Spaces as JSON, of the first policy.
        can_replay: Whether episodes can be replayed, see `VectorEnv`.
        private_bytes: Private memory of the worker process.
    """

    obs_spec: Mapping[str, Any]
    action_spec: Mapping[str, Any]
    can_replay: bool
    private_bytes: int


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A worker's collection settings and first row, with the shared memory's descriptor.

    There is one message for each policy, in the order of `Greeting.agents`.

    Attributes:
        network: Network as JSON. None if the inference process acts.
        outputs: Sizes of the network's outputs.
        exploration: The policy's `Exploration` as JSON. None if the inference process acts: the
            worker does not import the class, whose module may import torch.
        has_episode_noise: Whether the exploration is an `EpisodeNoise`.
        in_fragments: Whether rows are evaluated and taken as whole fragments.
        first_row: First row of this process.
        first_episode: Number of the first episodes. None: each environment's next one.
        resume: Number and hash of each environment's episode in the run to resume. The packet
            contains their actions.
    """

    network: Mapping[str, Any] | None
    outputs: Mapping[str, Any]
    exploration: Mapping[str, Any] | None
    has_episode_noise: bool
    schedule: Schedule
    in_fragments: bool
    num_steps: int
    num_workers: int
    seed: int
    first_row: int
    first_episode: int | None
    resume: Sequence[tuple[int, str]] | None


@dataclass(frozen=True, kw_only=True)
class InferenceSetup:
    """The settings of the inference process, with the shared memory's descriptor.

    Attributes:
        network: Network as JSON.
        exploration: The policy's `Exploration` as JSON.
        num_envs: Environments of each worker.
        seed: Seed of the action noise.
    """

    network: Mapping[str, Any]
    exploration: Mapping[str, Any] | None
    num_steps: int
    num_workers: int
    num_envs: int
    seed: int


@dataclass(frozen=True, kw_only=True)
class WorkerResumed:
    """A worker has restored all but `restarted_envs`. The packet contains `obs`.

    Attributes:
        policy: Index of the policy, in the order of `Greeting.agents`.
    """

    restarted_envs: Sequence[int]
    policy: int = 0


@dataclass(frozen=True, kw_only=True)
class CallRequest:
    """A call of the worker's environments.

    Attributes:
        call: The pickled `EnvCall`, in base64.
    """

    call: str


@dataclass(frozen=True, kw_only=True)
class CallResult:
    """The end of such a call.

    Attributes:
        value: The pickled result, in base64. Empty after an error.
        message: Text of the error, empty if there is none.
        type: Class name of the error.
        traceback: Traceback in the worker.
    """

    value: str = ""
    message: str = ""
    type: str = ""
    traceback: str = ""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """An environment was replaced after an error, or the worker ends.

    Attributes:
        message: Text of the error.
        is_final: Whether the worker ends.
        is_recoverable: Whether a new process may succeed.
        type: Class name of the error.
        traceback: Traceback in the worker.
    """

    message: str
    is_final: bool = True
    is_recoverable: bool = True
    type: str = ""
    traceback: str = ""


Message = (
    Greeting | Ready | Setup | InferenceSetup | WorkerResumed | CallRequest | CallResult | Failure
)
MESSAGES: dict[str, type[Message]] = {kind.__name__: kind for kind in get_args(Message)}


class Packet(NamedTuple):
    """A message or a nudge, with optional extras.

    Attributes:
        message: The message. None for a nudge.
        arrays: Arrays by name.
        fd: A file descriptor, or −1.
    """

    message: Message | None = None
    arrays: Mapping[str, Array] = {}
    fd: int = -1
