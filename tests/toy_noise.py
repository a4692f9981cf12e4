"""A kind of exploration as a user writes it, in a module that workers and actors import."""

from dataclasses import dataclass

from hotloop.policies import EpisodeNoise


@dataclass(frozen=True, kw_only=True)
class HeldNoise(EpisodeNoise):
    """Gaussian noise that changes only every few steps."""

    hold_steps: int = 8

    @property
    def chunk_steps(self):
        return self.hold_steps

    def correlate(self, white, state):
        return white[:1].repeat(len(white), axis=0), state
