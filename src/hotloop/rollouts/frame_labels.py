"""Labels above the frames of a video: the names of a game's players."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hotloop.errors import requires_extra
from hotloop.types import Array

_MARGIN = 6  # pixels around the text
_MIN_SIZE, _FRACTION = 16, 30  # height of a line: at least this, and this part of the width


class FrameLabel:
    """A band of text above each frame, with a line for each agent: "agent: player".

    Args:
        players: the name of each agent's player, by agent.

    Raises:
        MissingExtraError: pygame is not installed.
    """

    def __init__(self, players: Mapping[str, str]) -> None:
        self._lines = [f"{agent}: {player}" for agent, player in players.items()]
        self._band: Array | None = None

    def add(self, frame: Array) -> Array:
        """Return a frame with the band above it.

        Args:
            frame: uint8, (height, width, 3), with even height and width.

        Returns:
            The same, with a larger height, which is even.
        """
        if self._band is None or self._band.shape[1] != frame.shape[1]:
            self._band = self._draw(frame.shape[1])
        return np.concatenate((self._band, frame))

    def _draw(self, width: int) -> Array:
        """Return the band, uint8, (height, width, 3). Lines that are too long are cut."""
        with requires_extra("naming the players in a video needs pygame", "video"):
            import pygame
        pygame.font.init()
        font = pygame.font.Font(None, max(_MIN_SIZE, width // _FRACTION))
        height = font.get_linesize()
        total = 2 * _MARGIN + height * len(self._lines)
        band = pygame.Surface((width, total + total % 2))
        for number, line in enumerate(self._lines):
            text = font.render(line, True, (255, 255, 255))
            band.blit(text, (_MARGIN, _MARGIN + number * height))
        return np.ascontiguousarray(pygame.surfarray.array3d(band).swapaxes(0, 1))
