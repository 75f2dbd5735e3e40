"""Compressed images: decoded by threads in their order, to one size or their own; broken ones are named, or left out."""

from __future__ import annotations

import io
import multiprocessing
import threading
from typing import Any

import numpy as np
import pyfab
import pytest
from pyfab.data import GlobalShuffle, Loader, ShardedStore, from_samples

pytest.importorskip("PIL")
from PIL import Image
from pyfab.data import DecodeImages

BROKEN = 7


def content(number: int, kind: str = "JPEG") -> bytes:
    """An image of one color and of a size of its own, which tell its number."""
    file = io.BytesIO()
    pixel = (10 * number, 255 - 10 * number, 50)
    Image.new("RGB", (16 + number, 40 - number), pixel).save(file, kind, quality=95)
    return file.getvalue()


def samples(count: int, broken: bool = False) -> list[dict[str, Any]]:
    made = [{"image": content(i, "PNG" if i % 5 == 0 else "JPEG"), "label": i} for i in range(count)]
    if broken:
        made[BROKEN]["image"] = made[BROKEN]["image"][:-40]
        made[BROKEN + 1]["image"] = b"no image"
    return made


def check(batch: dict[str, Any], sized: bool) -> list[int]:
    for place, number in enumerate(batch["label"].tolist()):
        image = batch["image"][place]
        if sized:
            assert batch["image_size"][place].tolist() == [40 - number, 16 + number]
            image = image.reshape(*batch["image_size"][place], 3)
        assert image.dtype == np.uint8 and np.ptp(image.reshape(-1, 3), 0).max() <= 2
        assert np.abs(image[0, 0].astype(int) - (10 * number, 255 - 10 * number, 50)).max() <= 3
    return batch["label"].tolist()


def decodes(group: pyfab.Group) -> list[int]:
    seen = []
    with ShardedStore(group, from_samples(samples(24)[group.rank * 12 :][:12])) as store:
        for size in ((8, 12), None):
            for copy in (True, False):
                decode = DecodeImages("image", size=size, threads=3)
                loader = Loader(store, GlobalShuffle(store, 5), copy=copy, decode=decode)
                kept = list(loader)
                assert (
                    kept[0]["image"].shape == (5, 8, 12, 3) if size else kept[0]["image_size"].shape == (5, 2)
                )
                expected = list(GlobalShuffle(store, 5))
                for batch, numbers in zip(kept, expected, strict=True):
                    if copy:
                        assert check(batch, size is None) == numbers.tolist()
                seen.append(sum(len(batch["image"]) for batch in kept))
        gray = DecodeImages("image", size=(4, 4), mode="L")(store.gather([3, 4]))
        assert gray["image"].shape == (2, 4, 4) and gray["label"].tolist() == [3, 4]
        empty = DecodeImages("image", size=(4, 4))(store.gather([]))
        assert empty["image"].shape == (0, 4, 4, 3)
    return seen


@pytest.mark.slow
def test_images_are_decoded_in_their_order():
    assert np.sum(pyfab.spawn(decodes, 2, links="shm", timeout=60), 0).tolist() == [24] * 4


@pytest.fixture(scope="module")
def store() -> Any:
    with (
        pyfab.Group(0, 1, domain="shm") as group,
        ShardedStore(group, from_samples(samples(20, broken=True))) as store,
    ):
        yield store


@pytest.mark.parametrize("size", [(8, 8), None])
def test_broken_images_are_named_or_left_out(store, size):
    order = GlobalShuffle(store, 6, shuffle=False)
    loader = Loader(store, order, decode=DecodeImages("image", size=size))
    batches = iter(loader)
    check(next(batches), size is None)
    for _ in range(2):  # the batch is not given, and tried again
        with pytest.raises(OSError, match="runcated") as error:
            next(batches)
        name = f"the image of sample {BROKEN}, field 'image'"
        assert name in str(getattr(error.value, "__notes__", name))  # Python 3.10 has no notes
    assert loader.state_dict()["cursor"] == 6

    told: list[tuple[str, str, str]] = []

    def note(error: Exception, name: str) -> None:
        told.append((type(error).__name__, name, threading.current_thread().name))

    decode = DecodeImages("image", size=size, on_error=note)
    lengths, seen = [], []
    for batch in Loader(store, GlobalShuffle(store, 6, shuffle=False), decode=decode):
        lengths.append(len(batch["image"]))
        seen += check(batch, size is None)
    assert lengths == [6, 4, 6, 2] and decode.skipped == 2
    assert seen == [i for i in range(20) if i not in (BROKEN, BROKEN + 1)]
    assert [name for _, name, _ in told] == [
        f"the image of sample {number}, field 'image'" for number in (BROKEN, BROKEN + 1)
    ]
    assert {thread for *_, thread in told} == {threading.current_thread().name}


def test_what_is_no_image_field_is_refused(store):
    for field in ("label", "nothing"):
        with pytest.raises(pyfab.InvalidArgumentError, match=f"'{field}' is no ragged field of uint8"):
            next(iter(Loader(store, GlobalShuffle(store, 2), decode=DecodeImages(field))))
    with pytest.raises(pyfab.InvalidArgumentError, match="are 1 or more"):
        DecodeImages("image", threads=0)


def test_large_images_are_decoded_at_a_fraction(monkeypatch):
    """A JPEG comes out of the decoder at least twice as large as wanted, and not whole."""
    file = io.BytesIO()
    Image.effect_noise((640, 640), 50).convert("RGB").save(file, "JPEG")
    seen = []
    resize = Image.Image.resize
    monkeypatch.setattr(
        Image.Image, "resize", lambda image, *a, **k: seen.append(image.size) or resize(image, *a, **k)
    )
    made = DecodeImages("image", size=(32, 32))({"image": pyfab.data.Ragged.from_samples([file.getvalue()])})
    assert made["image"].shape == (1, 32, 32, 3) and seen == [(80, 80)]


@pytest.mark.slow
def test_a_child_of_fork_decodes_with_threads_of_its_own() -> None:
    decode = DecodeImages("image", size=(4, 4), threads=1)
    batch = from_samples(samples(2))
    decode(dict(batch))
    context = multiprocessing.get_context("fork")
    child = context.Process(target=decode, args=(dict(batch),))
    child.start()
    child.join(20)
    child.kill()  # if it hangs
    assert child.exitcode == 0
