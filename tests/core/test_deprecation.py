"""What goes away tells so, once in each place."""

from __future__ import annotations

import warnings

import pytest
from pyfab.core.deprecation import deprecated, warn_deprecated


@deprecated("2.0", "new()")
def old(value: int) -> int:
    """Doubles."""
    return 2 * value


def setting() -> None:
    warn_deprecated("the setting tcp_old", "2.0", "tcp_new", for_users=True)


def test_each_place_is_told_once():
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(3):
            assert old(2) == 4
        old(1)
        for _ in range(3):
            setting()
    assert [str(warning.message) for warning in told] == [
        "pyfab.old() is deprecated and goes away in pyfab 2.0: use new()",
        "pyfab.old() is deprecated and goes away in pyfab 2.0: use new()",
        "the setting tcp_old is deprecated and goes away in pyfab 2.0: use tcp_new",
    ]
    assert [warning.category for warning in told] == [DeprecationWarning, DeprecationWarning, FutureWarning]
    assert {warning.filename for warning in told} == {__file__}
    lines = [warning.lineno for warning in told]
    assert len(set(lines)) == 3
    assert old.__doc__ == "Doubles."


def test_whoever_wants_errors_gets_one_each_time():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            with pytest.raises(DeprecationWarning, match=r"2\.0: use new"):
                old(1)
