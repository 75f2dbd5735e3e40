"""The documentation site: `sphinx-build -W docs build/site`, in the environment of `pip install '.[docs]'`."""

import importlib.util
import re
import sys
from pathlib import Path

import pyfab
from sphinx.pycode import ModuleAnalyzer

notebooks = Path(__file__).with_name("notebooks")
if not notebooks.exists():  # in an sdist, which has no links
    notebooks.symlink_to("../notebooks")

project = "pyfab"
author = "the pyfab developers"
copyright = "the pyfab developers"
version = release = pyfab.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc"]
exclude_patterns = ["**/.ipynb_checkpoints", "figures"]  # what pictures are drawn from

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # notebooks are stored with outputs, which the tests check
nb_merge_streams = True

# A reference needs the names and the texts of pyfab alone.
autodoc_mock_imports = [name for name in ("ray", "torch") if importlib.util.find_spec(name) is None]

default_role = "code"  # docstrings name things in single backquotes
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
python_maximum_signature_line_length = 100

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["wide.css"]  # tables of five columns, code of 110
html_title = f"pyfab {release}"
html_show_sphinx = False


def setup(app):
    """Docstrings are written for readers of the code; here they become reStructuredText."""

    def as_code(_app, what, _name, _object, _options, lines):
        # "tcp:eth0" would be taken for an address on the web.
        lines[:] = [re.sub(r'(?<!`)("(?:shm|tcp|verbs)[^"\s]*")', r"``\1``", line) for line in lines]
        # A module's docstring ends with an example.
        if what == "module" and any(line.startswith("with ") for line in lines):
            start = next(i for i, line in enumerate(lines) if line.startswith("with "))
            lines[start:] = ["::", "", *("    " + line.replace("``", "") for line in lines[start:])]

    app.connect("autodoc-process-docstring", as_code)

    # Public classes call themselves pyfab.…, so the comments on their attributes are looked for there.
    public = ModuleAnalyzer.for_module("pyfab")
    public.analyze()
    for name in [name for name in sys.modules if name.startswith("pyfab.") and "_core" not in name]:
        room = ModuleAnalyzer.for_module(name)
        room.analyze()
        public.attr_docs |= room.attr_docs
