"""The choice of a run's replay source: a buffer, a data set, both, or a source of the user's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hotloop.training.device_replay import ReplayOnDevice, is_on_device
from hotloop.training.recorded import MixedReplay, RecordedReplay
from hotloop.training.replay import Replay, ReplaySource, check_source

if TYPE_CHECKING:
    from hotloop.training.sources import Sources


def make_source(
    sources: Sources[Any],
    memory_size: int,
    *,
    is_scaled: bool,
    is_offline: bool,
    custom: Callable[..., ReplaySource] | None,
    name: str,
) -> ReplaySource:
    """Return the source of batches.

    Args:
        sources: the environments and the configuration.
        memory_size: M, the size of the acting network's hidden state.
        is_scaled: whether observations are scaled when they are drawn.
        is_offline: whether the algorithm learns from a data set alone.
        custom: the algorithm's own source, or None.
        name: the algorithm's name, for messages.

    Raises:
        ConfigError: an option has no effect on the source, or its transitions don't fit into
            memory.
    """
    config, envs, device = sources.config, sources.envs, sources.device
    if custom is not None:
        source = custom(config, envs, device, sources.spec, memory_size)
        check_source(source, config, name)
        return source
    if is_offline:
        return RecordedReplay(config, envs, device, config.batch_size)
    if config.replay_from is not None:
        return MixedReplay(config, envs, device, sources.spec, memory_size)
    if is_on_device(config, envs, device):
        return ReplayOnDevice(config, envs, device, is_scaled=is_scaled)
    return Replay(config, envs, device, sources.spec, memory_size)
