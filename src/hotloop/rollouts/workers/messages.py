"""Messages between a learner and a worker; they travel as JSON, with what a `Packet` has beside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from hotloop.rollouts.protocol import Schedule
from hotloop.types import Array

# The number of the inference process, where others have a worker's.
INFERENCE = -1


@dataclass(frozen=True, kw_only=True)
class Greeting:
    """The learner's first word; what follows `bells` is for `make_vec`.

    Attributes:
        worker: which one it is; `INFERENCE`: the inference process.
        component: what its timing calls it.
        timing_dir: where it records that.
        bells: descriptors of its own and of the inference process's, none where workers act by
            themselves; of the inference process, its own and all workers'.
    """

    worker: int
    component: str
    timing_dir: str
    bells: Sequence[int]
    env: str
    num_envs: int
    seed: int
    env_kwargs: Mapping[str, Any]
    first_env: int
    first_episode: int
    stagger: int
    action_masks: bool = False
    log_info: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Ready:
    """The worker has made its environments.

    Attributes:
        obs_spec, action_spec: as JSON.
        can_replay: see `VectorEnv`.
        private_bytes: that its process holds.
    """

    obs_spec: Mapping[str, Any]
    action_spec: Mapping[str, Any]
    can_replay: bool
    private_bytes: int


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What to collect, and from which row on; the shared memory goes along.

    Attributes:
        network: what acts, as JSON; None: the inference process does.
        outputs: how much it gives.
        exploration: fields of an `Exploration`.
        in_fragments: whether rows are taken by whole fragments, and evaluated so.
        first_row: the first one that is this process's.
        first_episode: to begin with; None: each environment's next one.
        resume: number and hash of each environment's episode, whose actions go along, from which
            another run is gone on with.
    """

    network: Mapping[str, Any] | None
    outputs: Mapping[str, Any]
    exploration: Mapping[str, Any] | None
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
    """For whom the inference process acts; the shared memory goes along.

    Attributes:
        network: what acts, as JSON.
        exploration: fields of an `Exploration`.
        num_envs: of each worker.
        seed: of the noise.
    """

    network: Mapping[str, Any]
    exploration: Mapping[str, Any] | None
    num_steps: int
    num_workers: int
    num_envs: int
    seed: int


@dataclass(frozen=True, kw_only=True)
class Resumed:
    """The worker is where another run stood, but for some environments; `obs` goes along."""

    restarted_envs: Sequence[int]


@dataclass(frozen=True, kw_only=True)
class Failure:
    """An environment was made anew, or the worker ends.

    Attributes:
        message: of the error.
        is_final: whether the worker ends.
        can_be_mended: whether another one in its place may do better.
        type: of the error, by its name.
        traceback: of the worker.
    """

    message: str
    is_final: bool = True
    can_be_mended: bool = True
    type: str = ""
    traceback: str = ""


Message = Greeting | Ready | Setup | InferenceSetup | Resumed | Failure
MESSAGES: dict[str, type[Message]] = {
    kind.__name__: kind for kind in (Greeting, Ready, Setup, InferenceSetup, Resumed, Failure)
}


class Packet(NamedTuple):
    """A message, or a nudge, and what travels along.

    Attributes:
        message: None: it is a nudge.
        arrays: by name.
        fd: a descriptor, or −1.
    """

    message: Message | None = None
    arrays: Mapping[str, Array] = {}
    fd: int = -1
