"""Images that a store keeps compressed, decoded by threads while batches are read ahead."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyfab.core.errors import InvalidArgumentError, note
from pyfab.data._engine import Batch, Gathered
from pyfab.data._fields import Ragged
from pyfab.data._readers import OnError
from pyfab.data.memory.pool import MemoryPool

# An image is at least so many times as wide and high as wanted, when it is resized with all its pixels.
_GAP = 2


class DecodeImages:
    """Decodes a ragged field of compressed images (JPEG, PNG, all that Pillow reads) in threads; for `Loader(decode=...)`.

    field: the name of a field of uint8, which has the content of a file for each sample. size: (height, width) to which all
    images are resized. Then the batch has one array of uint8, (samples, height, width, bands), without the last dimension if the
    mode has one band. JPEGs that are much larger are decoded at a fraction of their size. Without `size`, the images keep their
    sizes. Then the batch has a `Ragged` of pixels and, as `<field>_size`, an array of int64, (samples, 2), of heights and widths;
    image i is ``batch[field][i].reshape(*batch[field + "_size"][i], bands)``. mode: a mode of Pillow, by default RGB. threads: by
    default as many as this process has processors. Pillow does not hold Python's lock while it decodes.

    on_error: called with the error of Pillow and the name of the sample, on the thread that asks for the batch. If it does not
    raise, the sample is left out of the batch, in all fields, and counted in `skipped`. Without `on_error`, the error is raised.

    Call this object with a batch, for instance from `store.gather`, to get the batch decoded. Needs Pillow. Thread-safe.
    """

    def __init__(
        self,
        field: str,
        *,
        size: tuple[int, int] | None = None,
        mode: str = "RGB",
        threads: int | None = None,
        on_error: OnError | None = None,
    ) -> None:
        try:
            from PIL import Image
        except ImportError as error:
            raise ImportError("DecodeImages needs Pillow: pip install pillow") from error
        threads = len(os.sched_getaffinity(0)) if threads is None else threads
        if threads < 1 or (size is not None and min(size) < 1):
            raise InvalidArgumentError(
                f"size={size}, threads={threads}: height, width and threads are 1 or more"
            )
        self.field, self.size, self.mode, self.threads = field, size, mode, threads
        self.skipped = 0  # samples that were left out because their images could not be decoded
        self._on_error = on_error
        bands = Image.getmodebands(mode)
        self._bands = (bands,) if bands > 1 else ()
        self._image = Image
        self._pid = os.getpid()
        self._threads = ThreadPoolExecutor(threads, "pyfab-images")
        self._memory = MemoryPool()

    def __call__(self, batch: Batch) -> Batch:
        """The batch with its images decoded; errors name samples by their places in it."""
        decoding = Decoding(self, range(len(self._contents(batch))))
        decoding.begin(batch)
        return decoding.result()

    def start(self, gathered: Gathered, indices: Sequence[int]) -> Decoding:
        """Decodes the batch of a gather once it has come. indices: by which errors name samples."""
        decoding = Decoding(self, indices)
        gathered.add_done_callback(decoding.gathered)
        return decoding

    def _contents(self, batch: Batch) -> Ragged:
        contents = batch.get(self.field)
        if not isinstance(contents, Ragged) or contents.values.dtype != np.uint8 or contents.values.ndim != 1:
            raise InvalidArgumentError(
                f"field {self.field!r} is no ragged field of uint8, so it holds no files of images: Ragged.from_samples(contents)"
                " makes one of bytes"
            )
        return contents

    def _size_of(self, content: NDArray[np.uint8]) -> tuple[int, int]:
        with self._image.open(io.BytesIO(content.data)) as image:
            return image.height, image.width

    def _decode(self, content: NDArray[np.uint8], place: NDArray[np.uint8]) -> None:
        with self._image.open(io.BytesIO(content.data)) as file:
            image: Any = file
            size = None if self.size is None else self.size[::-1]
            if size is not None:
                file.draft(None, (_GAP * size[0], _GAP * size[1]))
            if image.mode != self.mode:
                image = image.convert(self.mode)
            if size is not None and image.size != size:
                image = image.resize(size, self._image.Resampling.BILINEAR, reducing_gap=_GAP)
            place[...] = np.asarray(image).reshape(place.shape)

    def _without(self, batch: Batch, errors: dict[int, Exception], indices: Sequence[int]) -> Batch:
        """The batch without these samples, unless they are errors."""
        for place, error in sorted(errors.items()):
            name = f"the image of sample {int(indices[place])}, field {self.field!r}"
            if self._on_error is None:
                note(error, f"while decoding {name}")
                raise error
            self._on_error(error, name)
            self.skipped += 1
        kept = np.delete(np.arange(len(indices)), list(errors))
        return {name: values[kept] for name, values in batch.items()}


class Decoding:
    """A batch whose images are being decoded. A thread does a few of them at a time, and the last one that is done tells."""

    def __init__(self, decoder: DecodeImages, indices: Sequence[int]) -> None:
        self._decoder, self._indices = decoder, indices
        self._errors: dict[int, Exception] = {}
        self._done: Future[Batch] = Future()
        self._lock = threading.Lock()
        self._open = 0  # tasks that are not done

    def gathered(self, gathered: Gathered) -> None:
        """Begins with the batch of a gather; if that has failed, its own result tells."""
        if gathered.exception(0) is None:
            self.begin(gathered.result(0))

    def begin(self, batch: Batch) -> None:
        """Begins with a batch."""
        decoder = self._decoder
        if decoder._pid != os.getpid():  # a child of fork() has none of its parent's threads
            decoder._threads, decoder._pid = ThreadPoolExecutor(decoder.threads, "pyfab-images"), os.getpid()
        try:
            decoder._threads.submit(self._share_out, batch)
        except RuntimeError as error:  # Python ends
            self._done.set_exception(error)

    def result(self, timeout: float | None = None) -> Batch:
        """Waits and returns the batch. Samples that could not be decoded are an error, or left out."""
        batch = self._done.result(timeout)
        return self._decoder._without(batch, self._errors, self._indices) if self._errors else batch

    def _share_out(self, batch: Batch) -> None:
        """Makes room for the images, and tasks of them."""
        try:
            decoder = self._decoder
            contents = decoder._contents(batch)
            images, sizes = self._room(contents)
            made = batch | {decoder.field: images}
            if sizes is not None:
                made[f"{decoder.field}_size"] = sizes
            count = len(contents)
            most = max(1, -(-count // (4 * decoder.threads)))
            parts = [range(start, min(start + most, count)) for start in range(0, count, most)]
            self._open = len(parts)
            if not parts:
                self._done.set_result(made)
            for part in parts:
                decoder._threads.submit(self._decode, part, contents, images, made)
        except Exception as error:
            self._done.set_exception(error)

    def _room(self, contents: Ragged) -> tuple[Any, NDArray[np.int64] | None]:
        """An array for images of one size; or pixels for those of their own sizes, and these: 0 of what cannot be opened."""
        decoder = self._decoder
        if decoder.size is not None:
            return decoder._memory.take((len(contents), *decoder.size, *decoder._bands), np.uint8), None
        sizes = np.zeros((len(contents), 2), np.int64)
        for place in range(len(contents)):
            try:
                sizes[place] = decoder._size_of(contents[place])
            except Exception as error:
                self._errors[place] = error
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes.prod(1))])
        return Ragged(decoder._memory.take((int(offsets[-1]), *decoder._bands), np.uint8), offsets), sizes

    def _decode(self, part: range, contents: Ragged, images: Any, made: Batch) -> None:
        for place in part:
            if place not in self._errors:
                try:
                    self._decoder._decode(contents[place], images[place])
                except Exception as error:
                    self._errors[place] = error
        with self._lock:
            self._open -= 1
            last = not self._open
        if last:
            self._done.set_result(made)
