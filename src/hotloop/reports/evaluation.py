"""The result of `hotloop eval` as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hotloop.base.rounding import format_number
from hotloop.training.trained_policy import EvaluationResult
from hotloop.types import Episode


@dataclass(frozen=True)
class Evaluation:
    """The episodes of an evaluation, and its video.

    Attributes:
        run: the run, as the user named it.
        result: the episodes.
        video: path of the video, None if there is none.
        filmed: the episode in the video, None if there is none.
    """

    run: str
    result: EvaluationResult
    video: str | None = None
    filmed: Episode | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the returns and lengths of all episodes, their metrics, and the video."""
        result = self.result
        content: dict[str, Any] = {
            "run": self.run,
            "episodes": len(result.episodes),
            "mean_return": result.mean_return,
            "std_return": result.std_return,
            "returns": result.returns,
            "lengths": result.lengths,
            "num_cut": result.num_cut,
        }
        if result.info:
            content["info"] = result.info
        if self.filmed is not None:
            content["video"] = {
                "path": self.video,
                "return": self.filmed.undiscounted_return,
                "length": self.filmed.length,
                "is_cut": self.filmed.is_cut,
            }
        return content

    def text(self, config: Mapping[str, Any]) -> str:
        """Return lines with mean length, range of returns, metrics, video and mean return.

        Args:
            config: the stored configuration of the run.
        """
        result = self.result
        spread = result.std_return
        low, high = (
            format_number(end, spread) for end in (min(result.returns), max(result.returns))
        )
        mean_length = format_number(float(np.mean(result.lengths)))
        lines = [
            f"{config['algorithm']} on {config['env_id']}, {self.run}",
            f"mean length {mean_length}, returns {low} … {high}",
        ]
        for name, values in result.info.items():
            known = [value for value in values if value is not None]
            mean = format_number(float(np.mean(known)), float(np.std(known)))
            lines.append(f"mean {name} {mean} over {len(known)} episodes")
        if (episode := self.filmed) is not None:
            scene = f"the first {episode.length:,} steps of an" if episode.is_cut else "an"
            filmed = format_number(episode.undiscounted_return, spread)
            end = " up to there" * episode.is_cut
            lines.append(f"video of {scene} episode with return {filmed}{end}: {self.video}")
        return "\n".join([*lines, str(result)])
