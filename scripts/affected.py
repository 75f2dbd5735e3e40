"""Prints a regular expression for the C++ sources that changed since a commit, and for those that include what changed.

python3 scripts/affected.py COMMIT
"""

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

FOLDERS = ("src/cpp", "tests/cpp", "tests/fuzz", "benchmarks", "examples")
INCLUDE = re.compile(r'^#include "(.*)"', re.MULTILINE)


def affected(changed: Iterable[str], sources: dict[str, str]) -> set[str]:
    """Those of `sources`, a text for each path, that are among `changed` or include one of them, also through others."""
    includes = {path: INCLUDE.findall(text) for path, text in sources.items()}
    found: set[str] = set()
    new = set(changed)
    while new:
        found |= new
        names = tuple(new)
        new = {
            path
            for path, names_in_it in includes.items()
            if path not in found and any(each.endswith("/" + name) for name in names_in_it for each in names)
        }
    return found & sources.keys()


def main() -> None:
    changed = subprocess.run(
        ["git", "diff", "--name-only", sys.argv[1]], capture_output=True, text=True, check=True
    ).stdout.split()
    files = [path for folder in FOLDERS for path in Path(folder).rglob("*.[ch]*") if path.is_file()]
    sources = {
        str(path): path.read_text(errors="replace") for path in files if path.suffix in (".h", ".cpp", ".c")
    }
    # The checks compile no tests.
    if any(("CMake" in path and not path.startswith("tests/")) or "clang" in path for path in changed):
        print(".")  # how files are compiled, or what is asked of them, has changed
        return
    programs = sorted(path for path in affected(changed, sources) if not path.endswith(".h"))
    print("|".join(re.escape("/" + path) for path in programs) or "$^")


if __name__ == "__main__":
    main()
