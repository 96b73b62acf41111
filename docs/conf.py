"""The site of docs/: `uv run --group docs sphinx-build -aW docs docs/_build/html`.

Nothing is fetched from the network. docs/reference/ is written while it is built, by the
modules of docs/_ext: its pages are of the code and of the results, and not kept.
"""

from __future__ import annotations

import importlib.metadata
import pathlib
import sys

_HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE / "_ext"), str(_HERE.parent)]

from tff_algos import preflight  # noqa: E402 - found by the line above

preflight.quiet([])  # Before anything imports TensorFlow.

project = "tff_algos"
author = "The tff_algos maintainers"
copyright = author
release = version = importlib.metadata.version("tff-algos")

extensions = [
  "myst_nb",
  "sphinx.ext.autodoc",
  "sphinx.ext.napoleon",
  "repository_pages",
  "formulas",
  "algorithm_pages",
  "api_pages",
]
exclude_patterns = ["_build", "_ext", "_static"]
nitpicky = True

# Notebooks are shown with the outputs that they were kept with.
nb_execution_mode = "off"
myst_heading_anchors = 4  # As GitHub makes them, so that a link works in both.
myst_enable_extensions = ["attrs_inline", "dollarmath"]

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_type_aliases = {"npt.ArrayLike": "ArrayLike", "Weights": "Weights"}
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 70
napoleon_attr_annotations = False
napoleon_numpy_docstring = False
napoleon_use_rtype = False
default_role = "code"

html_theme = "furo"
html_title = "tff_algos"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_domain_indices = False  # Of modules, of which the public names are not.
html_show_copyright = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": False}
smartquotes_action = "D"  # Dashes; quotation marks of code and messages stay.
pygments_style = "friendly"
pygments_dark_style = "monokai"
