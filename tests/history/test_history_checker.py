"""The checker accepts what the documentation allows and refuses what it does not, without the library."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from contents import Get, Put, check_block, check_messages
from linearize import check, minimise, step, story
from operations import FOREVER, Operation, Receipt, Send


def op(process, kind, call, back, *arguments, result=None, number=0, after=0):
    return Operation(process, number, kind, call, back, arguments, result, after)


GOOD = {
    "nothing": [],
    "at once, in either order": [
        op("a", "fetch_add", 0, 9, 1, result=2), op("b", "fetch_add", 1, 8, 2, result=0),
    ],
    "an unknown one took effect late": [
        op("a", "add", 0, FOREVER, 5), op("b", "read", 1, 2, result=0), op("b", "read", 3, 4, result=5),
    ],
    "an unknown one never happened": [op("a", "add", 0, FOREVER, 5), op("b", "read", 8, 9, result=0)],
    "a swap that found its value": [
        op("a", "write", 0, 1, 7), op("b", "cswap", 2, 5, 7, 8, result=7), op("c", "cswap", 2, 5, 7, 9, result=8),
    ],
}  # fmt: skip
BAD = {
    "lost update": [op("a", "fetch_add", 0, 5, 1, result=0), op("b", "fetch_add", 1, 6, 1, result=0)],
    "lost blind update": [op("a", "add", 0, 1, 1), op("b", "read", 2, 3, result=0)],
    "stale read": [
        op("a", "write", 0, 1, 1), op("a", "write", 2, 3, 2), op("b", "read", 4, 5, result=1),
    ],
    "read of two values in turns": [
        op("a", "write", 0, 9, 1), op("b", "read", 1, 2, result=1), op("b", "read", 3, 4, result=0),
    ],
    "double execution": [op("a", "fetch_add", 0, 1, 3, result=0), op("b", "read", 2, 3, result=6)],
    "double execution of an unknown one": [
        op("a", "fetch_add", 0, FOREVER, 3), op("b", "read", 2, 3, result=3), op("b", "read", 4, 5, result=6),
    ],
    "read of the future": [op("b", "read", 0, 1, result=4), op("a", "write", 2, 3, 4)],
    "unknown before it was called": [op("b", "read", 0, 1, result=4), op("a", "write", 2, FOREVER, 4)],
    "two winners": [op("a", "cswap", 0, 5, 0, 1, result=0), op("b", "cswap", 0, 5, 0, 2, result=0)],
    "overtaken by its own process": [
        op("a", "write", 0, 9, 1, number=1), op("a", "write", 0, 9, 2, number=2, after=1),
        op("b", "read", 10, 11, result=1),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_linearizable_histories_are_accepted(name):
    assert check(GOOD[name]).good


@pytest.mark.parametrize("name", BAD)
def test_histories_that_are_not_linearizable_are_refused(name):
    assert check(BAD[name]).good is False
    assert "not linearizable" in story(BAD[name])


def test_a_search_that_gives_up_says_so():
    unknown = [op("a", "swap", 0, FOREVER, number) for number in range(1, 12)]
    assert check([*unknown, op("b", "read", 1, 2, result=99)], most=50).good is None


def sequential(seed: int, processes: int = 3, length: int = 60) -> list[Operation]:
    """One operation after the other, with times that overlap: each took effect at its own moment, between call and return."""
    chance = random.Random(seed)
    value, found = 0, []
    free = [0] * processes
    for moment in range(1000, 1000 * (length + 1), 1000):
        who = chance.randrange(processes)
        if free[who] >= moment:
            continue
        kind = chance.choice(["add", "fetch_add", "swap", "cswap", "read", "write"])
        new = chance.randrange(1, 1 << 40)
        arguments = {"read": (), "cswap": (chance.choice([value, 5]), new)}.get(kind, (new,))
        made = op(str(who), kind, 0, 0, *arguments, number=moment)
        call = chance.randrange(free[who], moment)
        back = moment + chance.randrange(1, 4000)
        seen = value if kind not in ("add", "write") else None
        value = step(made, value)
        if chance.random() < 0.1:
            made = made._replace(call=call, back=FOREVER)
            free[who] = 1 << 62  # whoever does not know the outcome is a new process afterwards
            free.append(moment)
            processes += 1
        else:
            made = made._replace(call=call, back=back, result=seen)
            free[who] = back
        found.append(made)
    return found


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1 << 30))
def test_what_took_effect_one_by_one_is_accepted(seed):
    assert check(sequential(seed)).good


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1 << 30), st.data())
def test_a_changed_result_is_refused_and_shown_in_few_lines(seed, data):
    history = sequential(seed)
    fetching = [place for place, each in enumerate(history) if each.result is not None]
    if not fetching:
        return
    place = data.draw(st.sampled_from(fetching))
    wrong = list(history)
    wrong[place] = history[place]._replace(result=(1 << 50) + 1)  # which nobody wrote
    assert check(wrong).good is False
    part, _ = minimise(wrong)
    assert len(part) <= len(wrong) and any(each.result == (1 << 50) + 1 for each in part)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 1 << 30), st.data())
def test_an_effect_that_came_twice_is_refused(seed, data):
    """Additions of different amounts, one of which counts twice in all that is found after it returned."""
    chance = random.Random(seed)
    amounts = [chance.randrange(1, 1 << 40) for _ in range(20)]
    twice = data.draw(st.integers(0, 18))
    history, value = [], 0
    for place, amount in enumerate(amounts):
        history.append(op(str(place % 3), "fetch_add", 10 * place, 10 * place + 12, amount, result=value))
        value += amount
    assert check(history).good
    wrong = [
        each._replace(result=each.result + amounts[twice]) if place > twice else each
        for place, each in enumerate(history)
    ]
    assert check(wrong).good is False
    assert len(minimise(wrong)[0]) <= 4


def test_only_what_contradicts_itself_is_shown():
    history = []
    for number in range(500):
        found = number - (number > 300)  # number 300 was lost
        history.append(op("a", "fetch_add", 10 * number, 10 * number + 5, 1, result=found, number=number))
    part, _ = minimise(history)
    assert [each.number for each in part] == [300, 301]


PUTS = [Put(1, 0, 10), Put(2, 20, 30), Put(3, 25, FOREVER), Put(4, 26, FOREVER, refused=True)]


@pytest.mark.parametrize(
    "call, back, values", [(0, 5, (0, 1)), (12, 15, (1,)), (21, 24, (1, 2)), (40, 50, (2, 3)), (40, 50, (2,))]
)
def test_gets_may_find_what_was_under_way_or_last(call, back, values):
    assert check_block(PUTS, [Get("b", call, back, values)]) == ([], 0)


@pytest.mark.parametrize(
    "call, back, values, what",
    [
        (12, 15, (0,), "written over"),
        (40, 50, (2, 1), "written over"),
        (12, 15, (2,), "put later"),
        (12, 15, (77,), "nobody wrote"),
        (40, 50, (4,), "was refused"),
    ],
)
def test_gets_do_not_find_anything_else(call, back, values, what):
    (wrong,), _ = check_block(PUTS, [Get("b", call, back, values)])
    assert what in wrong


def test_a_word_may_have_bytes_of_puts_that_were_under_way_at_once_and_of_no_others():
    puts = [Put(0x0101, 0, 10), Put(0x0202, 20, 40), Put(0x0303, 25, 35)]
    assert check_block(puts, [Get("b", 50, 60, (0x0302,))]) == ([], 1)
    (wrong,), mixed = check_block(puts, [Get("b", 50, 60, (0x0301,))])
    assert "nobody wrote" in wrong and not mixed


SENDS = [
    Send("a", number, "t", 1, 10 * number, 10 * number + 5, must_come=number == 2) for number in (1, 2, 3)
]


def receipts(*numbers, time=100):
    return [Receipt("t", match, 1, time, "a", number) for match, number in enumerate(numbers)]


def test_messages_that_came_in_order_are_accepted():
    assert check_messages(SENDS, receipts(1, 2, 3)) == []
    assert check_messages(SENDS, receipts(2)) == []
    unordered = [send._replace(ordered=send.number != 1) for send in SENDS]
    assert check_messages(unordered, receipts(2, 3, 1)) == []


@pytest.mark.parametrize(
    "came, what",
    [
        (receipts(1, 2, 2), "twice"),
        (receipts(2, 1), "out of order"),
        (receipts(1, 3), "never came"),
        (receipts(2, 4), "never sent"),
        (receipts(2, time=3), "before it was sent"),
        ([Receipt("u", 0, 1, 100, "a", 3), *receipts(2)], "never sent there"),
    ],
)
def test_messages_that_came_otherwise_are_refused(came, what):
    assert any(what in wrong for wrong in check_messages(SENDS, came))


def test_a_message_that_was_refused_and_came_is_found():
    sends = [send._replace(refused=send.number == 2, must_come=False) for send in SENDS]
    assert "was refused" in check_messages(sends, receipts(1, 2))[0]
