"""What gets of whole values may find, and what may become of messages."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate
from typing import NamedTuple

from operations import FOREVER, Receipt, Send


class Put(NamedTuple):
    value: int
    call: int
    back: int  # since when it is visible, at the latest
    refused: bool = False


class Get(NamedTuple):
    who: str
    call: int
    back: int
    values: tuple[int, ...]  # that were found in the words of the block, each of which one put wrote


def check_block(puts: Iterable[Put], gets: Iterable[Get]) -> tuple[list[str], int]:
    """A get finds, in each word, what some put wrote that had begun, and that was not surely written over before the get began.

    Puts that are under way at once are not ordered among each other (docs/threads-and-memory.md, "What is seen when"), so words
    of both may be left; of one that completed any later get by anyone sees the data (WIN-26). 0 is what was there at first.
    Returns what is wrong, and how many words had bytes of several puts, each of which might have been found.
    """
    by_value = {0: Put(0, -1, -1)}
    for put in puts:
        by_value[put.value] = put
    done = sorted((put for put in by_value.values() if put.back < FOREVER), key=lambda put: put.back)
    backs = [put.back for put in done]
    latest = list(accumulate(done, lambda one, other: max(one, other, key=lambda put: put.call)))
    wrong, mixed = [], 0
    for get in gets:
        place = bisect_left(backs, get.call)
        over = (
            latest[place - 1] if place else by_value[0]
        )  # began last, of those that completed before the get began
        for value in get.values:
            put = by_value.get(value)
            if put is not None:
                text = _mistake(get, put, over)
            else:
                possible = [each.value for each in by_value.values() if not _mistake(get, each, over)]
                text = "" if _made_of(value, possible) else "which nobody wrote"
                mixed += not text
            if text:
                wrong.append(f"{get} found {put or value}, {text}")
    return wrong, mixed


def _mistake(get: Get, put: Put, over: Put) -> str:
    if put.refused:
        return "which was refused"
    if put.call >= get.back:
        return "which was put later"
    return f"which {over} had written over" if put.back < over.call else ""


def _made_of(value: int, possible: list[int]) -> bool:
    """Whether each byte is one of a value that might be there."""
    return all(any((value ^ each) >> bits & 0xFF == 0 for each in possible) for bits in range(0, 64, 8))


def check_messages(sends: Iterable[Send], receipts: Iterable[Receipt]) -> list[str]:
    """Each came at most once, to whom it was sent, after it was sent; in order; and came if it had to.

    docs/messages.md, "Order": messages of one context to another one match in the order of sending, unless they were sent
    unordered. Receives are of one tag here, so the order is looked at for each tag.
    """
    sent = {(each.process, each.number): each for each in sends}
    came: dict[tuple[str, int], Receipt] = {}
    last: dict[tuple[str, str, int], Receipt] = {}
    wrong = []
    for receipt in sorted(receipts, key=lambda each: (each.receiver, each.match)):
        key = receipt.sender, receipt.number
        send = sent.get(key)
        if send is None or (send.to, send.tag) != (receipt.receiver, receipt.tag):
            wrong.append(f"{receipt} was never sent there: {send}")
            continue
        if key in came:
            wrong.append(f"{receipt} came twice: {came[key]}")
            continue
        came[key] = receipt
        if send.refused:
            wrong.append(f"{receipt} came, and was refused: {send}")
        if receipt.time < send.call:
            wrong.append(f"{receipt} came before it was sent: {send}")
        if send.ordered:
            way = receipt.receiver, receipt.sender, receipt.tag
            if way in last and last[way].number > receipt.number:
                wrong.append(f"{receipt} came out of order, after {last[way]}")
            last[way] = receipt
    wrong += [f"{send} never came" for key, send in sent.items() if send.must_come and key not in came]
    return wrong
