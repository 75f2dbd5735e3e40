"""What a call costs in Python, beside what Python itself costs: µs per statement."""

from __future__ import annotations

from harness import Case, Group, main

CALLS = [
    Case("python", "numpy_assign"),
    Case("python", "call"),
    Case("python", "method_call"),
    Case("python", "memoryview_assign"),
    Case("python", "future"),
    Case("pyfab shm", "slice_mapped"),
    Case("pyfab shm", "post_mapped"),
    Case("pyfab shm", "put_mapped"),
    Case("pyfab shm window", "put_mapped"),
    Case("pyfab shm window", "assign_mapped"),
]

if __name__ == "__main__":
    main("overhead", [Group("calls from Python, 8 B", "us", CALLS)])
