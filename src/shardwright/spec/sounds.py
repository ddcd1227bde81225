"""The sounds of a sequence, as the tower of a model that hears takes them.

Sound becomes 100 spectra a second (`hop_length` 160 of 16,000 samples in transformers' WhisperFeatureExtractor). A
tower takes them all at once, or as many as make its `positions`: shorter sounds are padded, longer ones cut into
segments (`Tower.segments`) or refused. Where a job does not say, a sequence has one sound of 30 seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from shardwright.errors import Problem
from shardwright.records import record
from shardwright.spec.job import Job
from shardwright.spec.model import Model, Tower

USUAL_SOUNDS = 1  # chosen
USUAL_SECONDS = 30.0  # documented: chunk_length of WhisperFeatureExtractor
SPECTRA = 100  # documented: of a second, sampling_rate 16,000 over hop_length 160 of WhisperFeatureExtractor


@record
class Sounds:
    """`count` sounds of a sequence, of so many `seconds`. Each is `segments` samples of the encoder, of so many
    `positions`, and gives `tokens` to the decoder."""

    count: int
    seconds: float
    positions: int
    tokens: int
    segments: int = 1

    @property
    def all_tokens(self) -> int:
        """The tokens of all sounds of a sequence."""
        return self.count * self.tokens


def sounds_of(tower: Tower, job: Job) -> Sounds:
    """Return the sounds of a sequence of a job."""
    count = USUAL_SOUNDS if job.sounds_per_sequence is None else job.sounds_per_sequence
    seconds = USUAL_SECONDS if job.sound_seconds is None else job.sound_seconds
    heard, fixed = max(_positions(tower, seconds), tower.joined), tower.positions
    if fixed is None:
        return Sounds(count=count, seconds=seconds, positions=heard, tokens=heard // tower.joined)
    segments = math.ceil(heard / fixed) if tower.segments else 1
    tokens = segments * fixed if tower.segments == "padded" else min(heard, segments * fixed)
    return Sounds(count=count, seconds=seconds, positions=fixed, tokens=tokens // tower.joined, segments=segments)


def sound_problems(model: Model, job: Job, place: str) -> Iterator[Problem]:
    """Yield what of a job's sounds a model cannot take; the length of samples stands at `place`."""
    tower = model.audio
    if tower is None:
        for name in ("sounds_per_sequence", "sound_seconds"):
            if getattr(job, name) is not None:
                yield Problem(place.replace("seq_len", name), f"{model.name} hears no sounds", "leave it out")
        return
    sounds = sounds_of(tower, job)
    if sounds.count < 1:
        hint = "plan the text model where there are none"
        yield Problem(place.replace("seq_len", "sounds_per_sequence"), "must be at least 1", hint)
    if tower.positions is not None and not tower.segments and _positions(tower, sounds.seconds) > tower.positions:
        longest = tower.positions * 2 ** (len(tower.stem) - 1) / SPECTRA
        message = f"{model.name} hears {longest:g} seconds of a sound"
        yield Problem(place.replace("seq_len", "sound_seconds"), message, "give at most that many")


def _positions(tower: Tower, seconds: float) -> int:
    spectra = int(SPECTRA * seconds)
    if tower.chunk is None:
        return spectra >> (len(tower.stem) - 1)
    halved = 1 << (len(tower.stem) - 1)  # by each of the convolutions before the last product
    whole, rest = divmod(spectra, tower.chunk)
    return whole * -(-tower.chunk // halved) + -(-rest // halved)
