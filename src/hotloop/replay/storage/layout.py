"""The layout of a buffer: its fields, and their offsets in a row and in the staging area."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from hotloop.errors import ConfigError, shortened

# Larger fields are stored as frames, so that rows stay small and batches read whole pages.
MAX_ROW_FIELD_BYTES = 1024
RESERVED = ("index", "weight", "probability", "importance", "env", "valid", "self", "keys", "torch")

Path = tuple[str, ...]
Place = Literal["row", "next", "pool", "next_pool"]


@dataclass(frozen=True)
class Field:
    """One array of a transition.

    Attributes:
        path: its name, followed by the keys of nested dictionaries.
        shape: shape for one transition.
        dtype: dtype of its elements.
        place: `row`: in the row; `next`: in the linked next observation; `pool`: in a frame pool;
            `next_pool`: in a frame pool, as part of the next observation.
        offset: offset in bytes in the row or observation.
        pool_index: index of its frame pool, −1 if it has none.
    """

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    place: Place = "row"
    offset: int = 0
    pool_index: int = -1

    @property
    def size_bytes(self) -> int:
        """Size in bytes for one transition."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    @property
    def name(self) -> str:
        """The name in messages: the path, joined by dots."""
        return ".".join(self.path)

    @property
    def is_memory(self) -> bool:
        """Whether it is the hidden state of a recurrent network before the transition."""
        return self.path[0] == "memory"


@dataclass(frozen=True)
class FrameField:
    """A field that is stored as frames outside the rows.

    Attributes:
        name: the name in messages.
        frame_bytes: size of a frame, the unit of storage and sharing.
        stack: number of frames per transition.
        is_shared: whether rows also have the frames of the next observation.
        refs: offset of its frame numbers in a row.
        next_refs: offset of the next observation's frame numbers, −1 if not shared.
    """

    name: str
    frame_bytes: int
    stack: int
    is_shared: bool
    refs: int = -1
    next_refs: int = -1


@dataclass(frozen=True)
class RowLayout:
    """The layout of rows.

    A row has the observation's small fields, then the other small fields, then internal items: the
    discount of a window, links, and frame numbers. Offsets are −1 for missing items.
    """

    fields: tuple[Field, ...]
    frame_fields: tuple[FrameField, ...]
    obs_bytes: int
    plain_bytes: int
    row_bytes: int
    stage_next: int
    stage_bytes: int
    link: int
    discount: int
    raw_reward: int
    previous: int
    following: int
    shares_next_obs: bool

    def offset(self, name: str) -> int:
        """Return the offset of a small field in the row, −1 if there is none with this name."""
        for field in self.fields:
            if field.path == (name,) and field.place == "row":
                return field.offset
        return -1

    def user_fields(self) -> tuple[Field, ...]:
        """Return the fields that a user passes."""
        return tuple(
            part for part in self.fields if self.discount < 0 or part.path != ("discount",)
        )


def flatten(values: Mapping[str, Any], parent: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield the leaves of nested dictionaries with their paths."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flatten(value, (*parent, key))
        else:
            yield (*parent, key), value


def parse_fields(fields: Mapping[str, Any]) -> list[Field]:
    """Return the fields that a user declared as `{"obs": ((17,), np.float32), …}`.

    Raises:
        ConfigError: there are no fields, or one is not a shape and a numeric dtype.
    """
    parsed = []
    if not isinstance(fields, Mapping):
        raise ConfigError(
            f'`fields` must be a dictionary, {{"obs": ((17,), np.float32), …}}, got '
            f"{shortened(repr(fields))}"
        )
    for path, value in flatten(fields):
        name = ".".join(map(str, path))
        try:
            shape, dtype = value
            shape = (
                (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(map(int, shape))
            )
            dtype = np.dtype(dtype)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"field `{name}` must be declared as (shape, dtype), like ((17,), np.float32), got "
                f"{shortened(repr(value))}"
            ) from error
        if dtype.kind not in "biufc" or not dtype.isnative or any(length < 1 for length in shape):
            raise ConfigError(
                f"field `{name}` must be of numbers, with lengths from 1 on, got shape {shape} and "
                f"dtype {dtype}"
            )
        if path[0] in RESERVED or not all(isinstance(key, str) and key for key in path):
            raise ConfigError(
                f"field `{name}` must have another name: a batch has {', '.join(RESERVED)} already"
            )
        parsed.append(Field(path, shape, dtype))
    if len({field.name for field in parsed}) < len(parsed):
        raise ConfigError("two fields have one name, once dictionaries' keys are joined by dots")
    if not parsed:
        raise ConfigError('`fields` must declare at least one: {"obs": ((17,), np.float32), …}')
    return parsed


def arrange_fields(
    fields: Sequence[Field],
    *,
    share_next_obs: bool,
    frame_stacks: Sequence[str],
    n_step: int,
    has_raw_reward: bool,
    has_previous: bool,
    in_sequences: bool,
) -> RowLayout:
    """Assign a place to every field.

    Args:
        fields: the declared fields.
        share_next_obs: whether links lead to `next_obs`.
        frame_stacks: names of the fields whose first axis is a stack of frames.
        n_step: steps per window; more than 1 adds a field `discount`.
        has_raw_reward: whether to store each step's own reward beside its window's.
        has_previous: whether to store the distance to the environment's previous entry.
        in_sequences: whether to store distances to the previous and next entry. A field `memory` is
            then stored as frames, since it is gathered for the first row of a sequence only.

    Raises:
        ConfigError: the fields can't be shared as requested.
    """
    # Find the fields that are shared, and those that are stacks of frames.
    by_path = {field.path: field for field in fields}
    shared = _shared_paths(by_path) if share_next_obs else set()
    stacked = _stacked_paths(frame_stacks, shared, share_next_obs=share_next_obs)
    if n_step > 1 and ("discount",) in by_path:
        raise ConfigError("a field `discount` is added by `n_step` > 1: leave it out of `fields`")

    # Separate small fields from those stored as frames.
    placed: dict[Path, Field] = {}
    framed: list[FrameField] = []
    small: list[Field] = []
    for field in fields:
        if field.path[0] == "next_obs" and share_next_obs:
            continue
        is_large = field.size_bytes > MAX_ROW_FIELD_BYTES or (in_sequences and field.is_memory)
        if field.path not in stacked and not is_large:
            small.append(field)
            continue
        if field.path in stacked and not field.shape:
            raise ConfigError(f"`{field.name}` has no first axis that could be a stack of frames")
        stack = field.shape[0] if field.path in stacked else 1
        framed.append(
            FrameField(field.name, field.size_bytes // stack, stack, field.path in shared)
        )
        placed[field.path] = _place_field(field, "pool", pool_index=len(framed) - 1)

    # Place the small fields: observations, wide fields, narrow fields.
    end = 0
    for field in _by_alignment([field for field in small if field.path in shared]):
        end = _align(end, field.dtype.itemsize)
        placed[field.path] = _place_field(field, "row", end)
        end += field.size_bytes
    obs_bytes = end
    extra = [Field(("discount",), (), np.dtype(np.float32))] if n_step > 1 else []
    unshared = _by_alignment([field for field in small if field.path not in shared] + extra)
    for field in [field for field in unshared if field.dtype.itemsize >= 4]:
        end = _align(end, min(field.dtype.itemsize, 8))
        placed[field.path] = _place_field(field, "row", end)
        end += field.size_bytes
    tail = [field for field in unshared if field.dtype.itemsize < 4]
    for field in tail:
        end = _align(end, field.dtype.itemsize)
        placed[field.path] = _place_field(field, "row", end)
        end += field.size_bytes
    plain_bytes = end

    def word() -> int:
        nonlocal end
        end = _align(end, 4) + 4
        return end - 4

    # Place the internal items.
    link = word() if obs_bytes else -1
    previous = word() if has_previous or in_sequences else -1
    following = word() if in_sequences else -1
    raw_reward = word() if has_raw_reward else -1
    placed_frame_fields = []
    for field in framed:
        refs = _align(end, 4)
        end = refs + 4 * field.stack
        next_refs = end if field.is_shared else -1
        end += 4 * field.stack if field.is_shared else 0
        placed_frame_fields.append(
            FrameField(field.name, field.frame_bytes, field.stack, field.is_shared, refs, next_refs)
        )
    widest = max([min(field.dtype.itemsize, 8) for field in small], default=4)
    row_bytes = _align(end, max(widest, 4 if end != plain_bytes else 1))

    # `next_obs` has the offsets of `obs`, in another row.
    for path in shared:
        obs, next_obs = placed[path], by_path[("next_obs", *path[1:])]
        if obs.place == "row":
            placed[next_obs.path] = _place_field(next_obs, "next", obs.offset)
        else:
            placed[next_obs.path] = _place_field(next_obs, "next_pool", pool_index=obs.pool_index)
    order = [*(field.path for field in fields), *(field.path for field in extra)]
    return RowLayout(
        fields=tuple(placed[path] for path in order),
        frame_fields=tuple(placed_frame_fields),
        obs_bytes=obs_bytes,
        plain_bytes=plain_bytes,
        row_bytes=row_bytes,
        stage_next=_align(row_bytes, 8),
        stage_bytes=_align(row_bytes, 8) + _align(obs_bytes, 8),
        link=link,
        discount=placed[("discount",)].offset if extra else -1,
        raw_reward=raw_reward,
        previous=previous,
        following=following,
        shares_next_obs=share_next_obs,
    )


def _shared_paths(by_path: Mapping[Path, Field]) -> set[Path]:
    """Return the paths of `obs`, and check that `next_obs` has the same parts."""
    shared = {path for path in by_path if path[0] == "obs"}
    following = {path for path in by_path if path[0] == "next_obs"}
    if not shared or {("next_obs", *path[1:]) for path in shared} != following:
        raise ConfigError("sharing needs fields `obs` and `next_obs` of the same structure")
    for path in shared:
        obs, next_obs = by_path[path], by_path[("next_obs", *path[1:])]
        if (obs.shape, obs.dtype) != (next_obs.shape, next_obs.dtype):
            raise ConfigError(
                f"sharing needs `{obs.name}` and `{next_obs.name}` alike, got {obs.shape} "
                f"{obs.dtype} and {next_obs.shape} {next_obs.dtype}"
            )
    return shared


def _stacked_paths(
    frame_stacks: Sequence[str], shared: Set[Path], *, share_next_obs: bool
) -> set[Path]:
    """Return the paths of the fields that are stacks of frames, which must be shared ones."""
    if frame_stacks and not share_next_obs:
        raise ConfigError("`frame_stacks` needs `share_next_obs=True` and a field `next_obs`")
    stacked = {tuple(name.split(".")) for name in frame_stacks}
    for path in stacked:
        if path not in shared:
            known = sorted(".".join(path) for path in shared)
            raise ConfigError(
                f"`frame_stacks` names `{'.'.join(path)}`; shared fields are {', '.join(known)}"
            )
    return stacked


def _place_field(field: Field, place: Place, offset: int = 0, pool_index: int = -1) -> Field:
    return Field(field.path, field.shape, field.dtype, place, offset, pool_index)


def _align(position: int, size: int) -> int:
    return -(-position // size) * size


def _by_alignment(fields: Sequence[Field]) -> list[Field]:
    """Return the fields with the widest elements first, which avoids padding."""
    return sorted(fields, key=lambda field: -field.dtype.itemsize)
