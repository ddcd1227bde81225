"""What the tower of a model takes of a sequence: images (how many, how large, in how many patches and tokens), sounds
(`spec.sounds`), or the text or sound of an encoder-decoder.

A tower that takes images of any size scales its sides to a whole number of squares of merged patches (`smart_resize` of
transformers' models/qwen2_vl/image_processing_qwen2_vl.py). Where a job does not say, a sequence has one image, and
that is as large as the card of Qwen2.5-VL recommends at most.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from shardwright.errors import Problem
from shardwright.records import record
from shardwright.spec.adapter import adapter_parameters
from shardwright.spec.job import Job, Part
from shardwright.spec.mixers import Product
from shardwright.spec.model import Model, Tower
from shardwright.spec.sounds import sound_problems, sounds_of
from shardwright.spec.tiles import grid_of, tiles_in, tokens_in

USUAL_IMAGES = 1  # chosen
USUAL_PIXELS = 1280 * 28 * 28  # documented: huggingface.co/Qwen/Qwen2.5-VL-7B-Instruct, max_pixels of its example


@record
class Images:
    """`count` images of a sequence, of `height` × `width` pixels. Each is `tiles` samples of the encoder, of so many
    `positions` (patches, and a class token where there is one), and gives `tokens` to the decoder."""

    count: int
    height: int
    width: int
    positions: int
    tokens: int
    tiles: int = 1

    @property
    def all_tokens(self) -> int:
        """The tokens of all images of a sequence."""
        return self.count * self.tokens


def images_of(tower: Tower, job: Job) -> Images:
    """Return the images of a sequence of a job."""
    square = tower.patch * tower.merge
    height, width = job.image_size or (max(math.isqrt(USUAL_PIXELS) // square, 1) * square,) * 2
    if tower.budget is not None:
        height, width = _within(tower.budget, square, height, width)
    elif tower.image is None:
        height, width = (max(round(side / square), 1) * square for side in (height, width))
    elif tower.tiling is None:
        height = width = tower.image
    seen = (height, width) if tower.image is None else (tower.image, tower.image)
    patches = math.prod(side // tower.patch for side in seen)
    whole = Images(
        count=USUAL_IMAGES if job.images_per_sequence is None else job.images_per_sequence,
        height=height,
        width=width,
        positions=patches + tower.class_token,
        tokens=patches // tower.merge**2,
    )
    if tower.budget is not None:
        return replace(whole, positions=tower.budget * tower.merge**2)
    if tower.tiles is not None:
        return _joined_tiles(tower, whole)
    if tower.image is None or tower.tiling is None:
        return whole
    grid = grid_of(tower.tiling, tower.image, height, width)
    tokens = tokens_in(tower.tiling, grid, tower.image // square, height, width)
    return replace(whole, tiles=tiles_in(tower.tiling, grid), tokens=tokens)


def _joined_tiles(tower: Tower, images: Images) -> Images:
    """Return an image all of whose tiles are one sample (`MllamaVisionModel.forward` in transformers)."""
    tiles, padded = tower.tiles or 1, -(-images.positions // 8) * 8
    return replace(images, positions=tiles * padded, tokens=tiles * images.positions)


def _within(budget: int, square: int, height: int, width: int) -> tuple[int, int]:
    """Return the sides, whole numbers of squares, of an image that is scaled to at most `budget` squares
    (`get_aspect_ratio_preserving_size` of transformers' models/gemma4/image_processing_gemma4.py)."""
    factor = math.sqrt(budget * square**2 / (height * width))
    rows, columns = (int(factor * side / square) for side in (height, width))
    if not rows:
        return square, min(width // height, budget) * square
    if not columns:
        return min(height // width, budget) * square, square
    return rows * square, columns * square


@record
class Taken:
    """What a tower takes of a sequence: `count` samples (images or their tiles, sounds or their segments, or one of
    the text or sound that an encoder-decoder reads), each of so many `positions` in the encoder, of which the projector
    makes so many `tokens`."""

    count: int
    positions: int
    tokens: int

    @property
    def all_tokens(self) -> int:
        """The tokens of all samples of a sequence."""
        return self.count * self.tokens


def taken_of(tower: Tower, job: Job) -> Taken:
    """Return what a tower takes of a sequence of a job. An encoder of text has as many tokens as the decoder where the
    job does not say."""
    if tower.input == "image":
        images = images_of(tower, job)
        merged = images.tokens
        if tower.budget is None and tower.tiles is None:
            merged = (images.positions - tower.class_token) // tower.merge**2
        return Taken(count=images.count * images.tiles, positions=images.positions, tokens=merged)
    if tower.part == "audio":
        sounds = sounds_of(tower, job)
        count, length = sounds.count * sounds.segments, sounds.positions
        return Taken(count=count, positions=length, tokens=length // tower.joined)
    length = tower.positions or job.encoder_seq_len or job.seq_len
    return Taken(count=1, positions=length, tokens=length)


def stem_products(tower: Tower) -> list[tuple[float, Product]]:
    """Return the products before the layers of an encoder, with how many rows each has for a position after them."""
    if tower.stem_rows is not None:
        return list(zip(tower.stem_rows, tower.stem, strict=True))
    if tower.stem:
        return [(2.0 ** (len(tower.stem) - 1 - place), product) for place, product in enumerate(tower.stem)]
    return [(1.0, Product(inputs=tower.patch_values, outputs=tower.hidden, cut="whole"))] if tower.patch_values else []


def patch_rows(tower: Tower, taken: Taken) -> int:
    """Return the positions of a sample that are no class tokens and no padding of tiles."""
    return taken.positions - tower.class_token if tower.tiles is None else taken.tokens - tower.tiles


def encoder_job(tower: Tower, job: Job) -> Job:
    """Return a job as the encoder sees it: its sequences are what the tower takes."""
    plain = replace(job, adapter=None, document_tokens=None, images_per_sequence=None, image_size=None, freeze=None)
    plain = replace(plain, sounds_per_sequence=None, sound_seconds=None)
    return replace(plain, seq_len=taken_of(tower, job).positions, encoder_seq_len=None)


def tower_parameters(model: Model, job: Job) -> tuple[int, int]:
    """Return the weights of a model's towers that are trained, and those that are frozen; none without a tower."""
    trained = sum(
        tower.encoder_parameters * job.trains(tower.part) + tower.projector_parameters * job.trains("projector")
        for tower in model.towers
    )
    return trained, sum(tower.parameters for tower in model.towers) - trained


def trained_parameters(model: Model, job: Job) -> int:
    """Return the weights that have gradients and optimizer state: of adapters, or of all parts that are not frozen."""
    if job.adapter is not None:
        return adapter_parameters(model, job.adapter)
    return model.language_parameters * job.trains("language") + tower_parameters(model, job)[0]


def image_problems(model: Model, job: Job, place: str) -> Iterator[Problem]:
    """Yield what of a job's images and sounds, or of what an encoder takes, a model cannot take; the length of samples
    stands at `place`."""
    tower = model.tower
    if tower is None or tower.input != "image":
        for name in ("images_per_sequence", "image_size"):
            if getattr(job, name) is not None:
                yield Problem(place.replace("seq_len", name), f"{model.name} sees no images", "leave it out")
    if job.encoder_seq_len is not None and (tower is None or tower.input != "text"):
        message = f"{model.name} has no encoder of text"
        yield Problem(place.replace("seq_len", "encoder_seq_len"), message, "leave it out")
    if unknown := [part for part in job.freeze or () if part not in parts_of(model)]:
        message = f"{model.name} has no {' and no '.join(unknown)} to freeze"
        if tower is not None and tower.input == "text":
            message = f"{model.name}'s encoder shares the embedding of its decoder, and is trained with it"
        hint = f"name some of {', '.join(parts_of(model))}" if parts_of(model) else "leave it out"
        yield Problem(place.replace("seq_len", "freeze"), message, hint)
    yield from sound_problems(model, job, place)
    yield from _too_many_tokens(model, job, place)
    if parts_of(model)[-1:] == ("language",):
        yield from _untrained(model, job, place)
    if tower is None:
        return
    if tower.input != "image" and job.adapter is not None:
        message = "adapters beside the weights of an encoder-decoder are not described"
        yield Problem(place.replace("seq_len", "adapter"), message, "train all weights")
    if tower.input == "image":
        yield from _unseen_images(model, tower, job, place)
    unused = max(model.learned_positions - model.max_position, 0) if model.max_position else 0  # BART's first rows
    longest = tower.learned_positions - unused
    if tower.input == "text" and tower.position == "learned" and 0 < longest < taken_of(tower, job).positions:
        message = f"the encoder has a table of {longest} positions, fewer than its sequence"
        yield Problem(place.replace("seq_len", "encoder_seq_len"), message, "give at most that many")


def parts_of(model: Model) -> tuple[Part, ...]:
    """Return the parts of a model that may be frozen. An encoder of text shares its embedding with the decoder."""
    if model.tower is not None and model.tower.part == "encoder":
        return ("encoder",) if model.tower.input == "sound" else ()
    return (*(tower.part for tower in model.towers), "projector", "language") if model.towers else ()


def _unseen_images(model: Model, tower: Tower, job: Job, place: str) -> Iterator[Problem]:
    """Yield what of a job's images a model cannot take."""
    one_size = tower.image is not None and tower.tiling is None
    if one_size and job.image_size not in (None, (tower.image, tower.image)):
        size = f"{tower.image} × {tower.image} pixels"
        tiles = "" if tower.tiles is None else f"{tower.tiles} tiles of "
        message = f"{model.name} scales every image to {tiles}{size}"
        yield Problem(place.replace("seq_len", "image_size"), message, "leave it out")
    images = images_of(tower, job)
    if images.count < 1:
        hint = "plan the text model where there are none"
        yield Problem(place.replace("seq_len", "images_per_sequence"), "must be at least 1", hint)


def _untrained(model: Model, job: Job, place: str) -> Iterator[Problem]:
    """Yield that nothing is trained, or not what the optimizer needs."""
    if not trained_parameters(model, job):
        yield Problem(place.replace("seq_len", "freeze"), "leaves nothing to train", "leave out one of them")
    elif job.optimizer == "muon" and "language" in (job.freeze or ()):
        message = "muon turns steps of the language model's layers, which are frozen"
        yield Problem(place.replace("seq_len", "optimizer"), message, "use adam")


def _too_many_tokens(model: Model, job: Job, place: str) -> Iterator[Problem]:
    """Yield that what towers give has more tokens than a sequence."""
    tokens, sizes, hints = 0, [], []
    if model.tower is not None and model.tower.input == "image" and not model.tower.aside:
        images = images_of(model.tower, job)
        tokens += images.all_tokens
        sizes.append(f"images of a sequence ({images.count} of {images.width} × {images.height} pixels)")
        hints.append("fewer or smaller images (`image_size=`)")
    if model.audio is not None:
        sounds = sounds_of(model.audio, job)
        tokens += sounds.all_tokens
        sizes.append(f"sounds of a sequence ({sounds.count} of {sounds.seconds:g} s)")
        hints.append("fewer or shorter sounds (`sound_seconds=`)")
    if tokens > job.seq_len:
        message = f"{' and '.join(sizes)} have {tokens:,} tokens, it has {job.seq_len:,}"
        yield Problem(place, message, f"train on longer sequences, or {' and '.join(hints)}")
