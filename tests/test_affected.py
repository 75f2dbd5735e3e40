"""scripts/affected.py names every source that has to be read again."""

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
spec = importlib.util.spec_from_file_location("affected", ROOT / "scripts/affected.py")
assert spec and spec.loader
module = importlib.util.module_from_spec(spec)
sys.modules["affected"] = module
spec.loader.exec_module(module)


def test_whoever_includes_what_changed_is_affected():
    sources = {
        "src/cpp/base/fd.h": "#include <vector>\n",
        "src/cpp/base/fd.cpp": '#include "base/fd.h"\n',
        "src/cpp/fabric/segment.h": '#pragma once\n\n#include "base/fd.h"\n',
        "src/cpp/fabric/segment.cpp": '#include "fabric/segment.h"\n',
        "tests/cpp/fabric/node.h": '#include "fabric/segment.h"\n',
        "tests/cpp/fabric/segment_test.cpp": '#include "node.h"\n',
        "src/cpp/fabric/other.cpp": '#include "fabric/other_fd.h"\n',
    }
    everything_else = sources.keys() - {"src/cpp/fabric/other.cpp"}
    assert module.affected(["src/cpp/base/fd.h", "README.md"], sources) == everything_else
    assert module.affected(["tests/cpp/fabric/node.h"], sources) == {
        "tests/cpp/fabric/node.h",
        "tests/cpp/fabric/segment_test.cpp",
    }
    assert module.affected(["docs/links.md"], sources) == set()


def test_the_includes_of_this_tree_are_found():
    files = [path for folder in module.FOLDERS for path in (ROOT / folder).rglob("*.[ch]*")]
    sources = {
        str(path.relative_to(ROOT)): path.read_text(errors="replace") for path in files if path.is_file()
    }
    reached = module.affected(["src/cpp/fabric/types/error.h"], sources)
    assert "src/cpp/fabric/types/error.cpp" in reached
    assert any(path.startswith("tests/cpp/") for path in reached)
    assert "src/cpp/base/fd.h" not in reached
