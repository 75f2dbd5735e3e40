"""Journals become histories, one of each element, and these are checked."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import shared
from contents import Get, Put, check_block, check_messages
from linearize import check, story
from operations import FOREVER, Operation, Receipt, Send

KINDS = {"put": "write", "get": "read"}  # of single words
MOST_UNDECIDED = 5  # one word of so many may be left undecided
ALOOF = 5_000_000_000  # nanoseconds before an operation in which trouble of either side may still concern it


class Call(NamedTuple):
    process: int
    number: int
    kind: str
    target: str
    element: str
    arguments: list[int]
    level: int | None
    after: int
    call: int
    back: int
    outcome: str  # done, sent (told complete without the target's answer), refused, unknown
    result: Any


def _calls(process: int, records: list[list[Any]]) -> list[Call]:
    begun: dict[int, list[Any]] = {}
    ended: dict[int, list[Any]] = {}
    for record in records:
        if record[0] == "call":
            begun[record[2]] = record
        elif record[0] == "back":
            ended[record[2]] = record
    found = []
    for number, (_, call, _, kind, target, element, arguments, level, after) in begun.items():
        _, back, _, outcome, result = ended.get(number, (0, FOREVER, 0, "unknown", None))
        if outcome == "unknown":
            back = FOREVER
        weak = level in (1, 2) or (kind == "send" and level is None)
        if outcome == "done" and weak:
            outcome = "sent"
        found.append(
            Call(process, number, kind, target, element, arguments, level, after, call, back, outcome, result)
        )
    return found


class Judge:
    def __init__(self, folder: Path, processes: list[Any], troubles: list[tuple[int, int, str]]) -> None:
        self.names = {each.number: each.name for each in processes}
        self.numbers = {each.name: each.number for each in processes}
        self.killed = {each.number for each in processes if each.ending == "kill"}
        self.journals = {number: shared.read(folder / f"journal-{number}") for number in self.names}
        self.troubles: dict[int, list[int]] = defaultdict(list)
        for when, number, _ in troubles:
            self.troubles[number].append(when)
        self.calls: list[Call] = []
        for number, records in self.journals.items():
            self.calls += self._settled(_calls(number, records))
            self.troubles[number] += [each[1] for each in records if each[0] in ("cut", "late")]
        self.wrong: list[str] = []
        self.figures: Counter[str] = Counter()

    def disturbed(self, one: int, other: int, begin: int, end: int) -> bool:
        """Whether something happened to the two for which the documentation lets bytes be lost that were told sent."""
        return any(begin - ALOOF <= when <= end for number in (one, other) for when in self.troubles[number])

    def _settled(self, calls: list[Call]) -> list[Call]:
        """Puts and atomics that were told complete early are visible once a later atomic of the same client has an answer.

        docs/threads-and-memory.md, "What is seen when": an atomic sent after a put to the same peer comes after it; of atomics
        docs/rails.md, "Order". What was lost with a connection may have happened or not.
        """
        following: dict[str, Call] = {}
        found = []
        for each in reversed(calls):
            if each.outcome == "sent" and each.kind != "send":
                later = following.get(each.target)
                end = later.back if later else FOREVER
                lost = later is None or self.disturbed(
                    each.process, self.numbers[each.target], each.call, end
                )
                each = each._replace(back=FOREVER if lost else end)
            elif each.outcome == "done" and each.kind in (
                "add",
                "fetch_add",
                "swap",
                "cswap",
                "read",
                "write",
            ):
                following[each.target] = each
            found.append(each)
        return found[::-1]

    # --- words

    def words(self) -> None:
        """Atomics are atomic among each other, whatever link they come over, and a completed one is visible; words that are put
        are whole (docs/threads-and-memory.md, "What is seen when"), and any later get sees them (WIN-26)."""
        history: dict[tuple[str, str], list[Operation]] = defaultdict(list)
        for each in self.calls:
            if ".atomic" in each.element or ".cell" in each.element:
                if each.outcome == "refused":
                    continue
                kind = KINDS.get(each.kind, each.kind)
                if each.kind == "put":
                    each = each._replace(arguments=[shared.stamp(each.process, each.number)])
                history[each.target, each.element].append(
                    Operation(
                        self.names[each.process], each.number, kind, each.call, each.back,
                        tuple(each.arguments), each.result, each.after,
                    )
                )  # fmt: skip
        for target, records in self.journals.items():
            for what, when, *rest in records:
                if what == "word":
                    name, value = rest
                    history[self.names[target], name].append(
                        Operation(self.names[target], 0, "read", when - 1, when, (), value)
                    )
        for (target, element), operations in history.items():
            verdict = check(operations)
            self.figures["words checked"] += 1
            self.figures["states searched"] += verdict.states
            self.figures["largest partition"] = max(self.figures["largest partition"], len(operations))
            if verdict.good is None:  # too much was under way at once for the search
                self.figures["words not decided"] += 1
            elif not verdict.good:
                self.wrong.append(f"{element} of {target}: {story(operations)}")
        undecided = self.figures["words not decided"]
        if undecided * MOST_UNDECIDED > len(history):
            self.wrong.append(f"{undecided} of {len(history)} words were not decided")

    # --- blocks

    def blocks(self) -> None:
        known = self._notified()
        puts: dict[tuple[str, str], list[Put]] = defaultdict(list)
        gets: dict[tuple[str, str], list[Get]] = defaultdict(list)
        for each in self.calls:
            if ".block" not in each.element:
                continue
            key = each.target, each.element
            if each.kind == "put":
                value = shared.stamp(each.process, each.number)
                back = min(each.back, known.get((each.process, each.number), FOREVER))
                puts[key].append(Put(value, each.call, back, each.outcome == "refused"))
            elif each.outcome == "done":
                who = f"{self.names[each.process]} #{each.number}"
                gets[key].append(Get(who, each.call, each.back, tuple(each.result)))
        for target, records in self.journals.items():
            for what, when, *rest in records:
                if what == "seen":
                    name, call, values = rest
                    gets[self.names[target], name].append(Get(self.names[target], call, when, tuple(values)))
        for key in puts | gets:
            self.figures["blocks checked"] += 1
            self.figures["largest partition"] = max(
                self.figures["largest partition"], len(puts[key]) + len(gets[key])
            )
            wrong, mixed = check_block(puts[key], gets[key])
            self.figures["words of several puts"] += mixed
            self.wrong += [f"{key[1]} of {key[0]}: {each}" for each in wrong[:5]]

    def _notified(self) -> dict[tuple[int, int], int]:
        """Puts that a message told of, and when: whoever receives it finds their bytes (docs/messages.md, "Order")."""
        good = {(each.process, each.number): each for each in self.calls if each.outcome in ("done", "sent")}
        known = {}
        for target, records in self.journals.items():
            for what, when, *rest in records:
                if what == "got" and rest[4]:
                    put = good.get((rest[2], rest[4]))
                    if put and not self.disturbed(put.process, target, put.call, when):
                        known[rest[2], rest[4]] = when
        return known

    # --- messages

    def messages(self) -> list[str]:
        receipts, wrong = [], []
        for target, records in self.journals.items():
            for what, when, *rest in records:
                if what == "got":
                    tag, match, sender, number, _, whole = rest
                    receipts.append(
                        Receipt(
                            self.names[target], match, tag, when, self.names.get(sender, str(sender)), number
                        )
                    )
                    if not whole:
                        wrong.append(f"{receipts[-1]} had other bytes than were sent")
        sends = []
        for each in self.calls:
            if each.kind == "send":
                tag, unordered, _ = each.arguments
                sends.append(
                    Send(
                        self.names[each.process], each.number, each.target, tag, each.call, each.back,
                        not unordered, each.outcome == "refused", self._must_come(each),
                    )
                )  # fmt: skip
        self.figures["messages received"] = len(receipts)
        return wrong + check_messages(sends, receipts)

    def _must_come(self, send: Call) -> bool:
        """docs/messages.md, "Completion": from TRANSMIT on as long as the receiver lives; before that if nothing came between."""
        target = self.numbers[send.target]
        if target in self.killed or send.outcome not in ("done", "sent"):
            return False
        if send.level != 1:
            return True
        ends = [when for number in (send.process, target) for when in self.troubles[number]]
        return send.process not in self.killed and not any(when >= send.call - ALOOF for when in ends)

    # --- all

    def check(self) -> list[str]:
        self.words()
        self.blocks()
        self.wrong += self.messages()
        for number, records in self.journals.items():
            self.wrong += [f"{self.names[number]}: {each}" for each in records if each[0] == "hang"]
        return self.wrong

    def outcomes(self) -> dict[str, Counter[str]]:
        """Operations by kind and outcome."""
        table: dict[str, Counter[str]] = defaultdict(Counter)
        for each in self.calls:
            table[each.kind][each.outcome] += 1
        return table
