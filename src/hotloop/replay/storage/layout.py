"""The layout of a buffer: its fields, and their places in a row, a stage and a batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from hotloop.errors import ConfigError

# Fields that take more lie apart: a batch then reads whole pages of them, and a row stays small.
MAX_ROW_FIELD_BYTES = 1024
RESERVED = ("index", "weight", "probability", "importance", "env", "valid", "self", "keys", "torch")

Path = tuple[str, ...]
Place = Literal["row", "next", "apart", "apart_next"]


@dataclass(frozen=True)
class Field:
    """One array of a transition.

    Attributes:
        path: its name, and below it the keys where it is a dictionary.
        shape: of one transition's.
        dtype: of its elements.
        place: in the row; in the observation that follows it (`next`); apart, as frames, or as
            frames of what follows.
        offset: in the row, or in the observation.
        apart: which of the fields that lie apart.
    """

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    place: Place = "row"
    offset: int = 0
    apart: int = -1

    @property
    def size_bytes(self) -> int:
        """Of one transition's."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    @property
    def name(self) -> str:
        """As messages call it."""
        return ".".join(self.path)

    @property
    def is_memory(self) -> bool:
        """Whether it is what a network remembered before the transition."""
        return self.path[0] == "memory"


@dataclass(frozen=True)
class Apart:
    """A field that lies apart from the rows.

    Attributes:
        name: as messages call it.
        frame_bytes: what is stored, and shared, as one piece.
        stack: how many of them make one transition's.
        shared: whether the following observation's are kept too.
        refs: offset of its frames' numbers in a row.
        next_refs: offset of those of the following observation's, −1 if not shared.
    """

    name: str
    frame_bytes: int
    stack: int
    shared: bool
    refs: int = -1
    next_refs: int = -1


@dataclass(frozen=True)
class Layout:
    """Of all fields, and of what a row has besides.

    A row: the observation's small fields, the others, then what no user writes: the discount of a
    window, a link, frames' numbers. Offsets are −1 where something is not there.
    """

    fields: tuple[Field, ...]
    aparts: tuple[Apart, ...]
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
    linked: bool

    def offset(self, name: str) -> int:
        """Of a small field in the row, −1 if there is none of that name."""
        for one in self.fields:
            if one.path == (name,) and one.place == "row":
                return one.offset
        return -1

    def given(self) -> tuple[Field, ...]:
        """The fields that a user passes."""
        return tuple(one for one in self.fields if self.discount < 0 or one.path != ("discount",))


def flatten(values: Mapping[str, Any], above: Path = ()) -> Iterator[tuple[Path, Any]]:
    """The leaves of nested dictionaries, with their paths."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flatten(value, (*above, key))
        else:
            yield (*above, key), value


def declared(fields: Mapping[str, Any]) -> list[Field]:
    """Check fields as a user declares them: `{"obs": ((17,), np.float32), …}`.

    Raises:
        ConfigError: there are none, or one is not a shape and a dtype of numbers.
    """
    found = []
    if not isinstance(fields, Mapping):
        raise ConfigError(
            f'`fields` must be a dictionary, {{"obs": ((17,), np.float32), …}}, got {fields!r}'
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
                f"{value!r}"
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
        found.append(Field(path, shape, dtype))
    if len({one.name for one in found}) < len(found):
        raise ConfigError("two fields have one name, once dictionaries' keys are joined by dots")
    if not found:
        raise ConfigError('`fields` must declare at least one: {"obs": ((17,), np.float32), …}')
    return found


def arrange(
    fields: Sequence[Field],
    *,
    share_next_obs: bool,
    frame_stacks: Sequence[str],
    n_step: int,
    keeps_raw_reward: bool,
    keeps_previous: bool,
    in_sequences: bool,
) -> Layout:
    """Give every field its place.

    Args:
        fields: as declared.
        share_next_obs: `next_obs` is found through links.
        frame_stacks: names of the fields whose first axis is a stack of frames.
        n_step: windows of more than one step add `discount`.
        keeps_raw_reward: keep each step's own reward beside its window's.
        keeps_previous: keep how many entries ago the same environment's last one was.
        in_sequences: keep that, and how many entries on its next one is; a field `memory` lies
            apart, since it is gathered for the first transition of a sequence alone.

    Raises:
        ConfigError: what is to be shared does not fit together.
    """
    by_path = {one.path: one for one in fields}
    shared = _shared_paths(by_path) if share_next_obs else set()
    if frame_stacks and not share_next_obs:
        raise ConfigError("`frame_stacks` needs `share_next_obs=True` and a field `next_obs`")
    stacked = {tuple(name.split(".")) for name in frame_stacks}
    for path in stacked:
        if path not in shared:
            known = sorted(".".join(one) for one in shared)
            raise ConfigError(
                f"`frame_stacks` names `{'.'.join(path)}`; shared fields are {', '.join(known)}"
            )
    if n_step > 1 and ("discount",) in by_path:
        raise ConfigError("a field `discount` is added by `n_step` > 1: leave it out of `fields`")

    placed: dict[Path, Field] = {}
    aparts: list[Apart] = []
    small: list[Field] = []
    for one in fields:
        if one.path[0] == "next_obs" and share_next_obs:
            continue
        is_large = one.size_bytes > MAX_ROW_FIELD_BYTES or (in_sequences and one.is_memory)
        if one.path not in stacked and not is_large:
            small.append(one)
            continue
        if one.path in stacked and not one.shape:
            raise ConfigError(f"`{one.name}` has no first axis that could be a stack of frames")
        stack = one.shape[0] if one.path in stacked else 1
        aparts.append(Apart(one.name, one.size_bytes // stack, stack, one.path in shared))
        placed[one.path] = _at(one, "apart", apart=len(aparts) - 1)

    end = 0
    for one in _by_alignment([one for one in small if one.path in shared]):
        end = _align(end, one.dtype.itemsize)
        placed[one.path] = _at(one, "row", end)
        end += one.size_bytes
    obs_bytes = end
    extra = [Field(("discount",), (), np.dtype(np.float32))] if n_step > 1 else []
    others = _by_alignment([one for one in small if one.path not in shared] + extra)
    for one in [one for one in others if one.dtype.itemsize >= 4]:
        end = _align(end, min(one.dtype.itemsize, 8))
        placed[one.path] = _at(one, "row", end)
        end += one.size_bytes
    tail = [one for one in others if one.dtype.itemsize < 4]
    for one in tail:
        end = _align(end, one.dtype.itemsize)
        placed[one.path] = _at(one, "row", end)
        end += one.size_bytes
    plain_bytes = end

    def word() -> int:
        nonlocal end
        end = _align(end, 4) + 4
        return end - 4

    link = word() if obs_bytes else -1
    previous = word() if keeps_previous or in_sequences else -1
    following = word() if in_sequences else -1
    raw_reward = word() if keeps_raw_reward else -1
    placed_aparts = []
    for one in aparts:
        refs = _align(end, 4)
        end = refs + 4 * one.stack
        next_refs = end if one.shared else -1
        end += 4 * one.stack if one.shared else 0
        placed_aparts.append(
            Apart(one.name, one.frame_bytes, one.stack, one.shared, refs, next_refs)
        )
    widest = max([min(one.dtype.itemsize, 8) for one in small], default=4)
    row_bytes = _align(end, max(widest, 4 if end != plain_bytes else 1))
    for path in shared:
        mate, own = placed[path], by_path[("next_obs", *path[1:])]
        if mate.place == "row":
            placed[own.path] = _at(own, "next", mate.offset)
        else:
            placed[own.path] = _at(own, "apart_next", apart=mate.apart)
    order = [*(one.path for one in fields), *(one.path for one in extra)]
    return Layout(
        fields=tuple(placed[path] for path in order),
        aparts=tuple(placed_aparts),
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
        linked=share_next_obs,
    )


def _shared_paths(by_path: Mapping[Path, Field]) -> set[Path]:
    """The parts of `obs`; `next_obs` must have the same."""
    shared = {path for path in by_path if path[0] == "obs"}
    following = {path for path in by_path if path[0] == "next_obs"}
    if not shared or {("next_obs", *path[1:]) for path in shared} != following:
        raise ConfigError("sharing needs fields `obs` and `next_obs` of the same make")
    for path in shared:
        one, other = by_path[path], by_path[("next_obs", *path[1:])]
        if (one.shape, one.dtype) != (other.shape, other.dtype):
            raise ConfigError(
                f"sharing needs `{one.name}` and `{other.name}` alike, got {one.shape} {one.dtype} "
                f"and {other.shape} {other.dtype}"
            )
    return shared


def _at(one: Field, place: Place, offset: int = 0, apart: int = -1) -> Field:
    return Field(one.path, one.shape, one.dtype, place, offset, apart)


def _align(position: int, size: int) -> int:
    return -(-position // size) * size


def _by_alignment(fields: Sequence[Field]) -> list[Field]:
    """The widest elements first, so that no space is lost between them."""
    return sorted(fields, key=lambda one: -one.dtype.itemsize)
