"""The guide, as Sphinx builds it: `make guide`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

project = "Ridgeline: a guide"
author = "the authors of Ridgeline"
html_title = "Ridgeline: a guide"
extensions = ["myst_parser", "sphinx.ext.autodoc", "docs.guide.machinery.extension", "sphinx.ext.napoleon"]
myst_enable_extensions = ["dollarmath", "deflist", "colon_fence"]
myst_heading_anchors = 3
suppress_warnings = ["myst.header"]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["guide.css"]
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
html_show_sourcelink = False
html_show_search_summary = False  # it fetches pages, which no browser does from a disk
html_theme_options = {"navigation_with_keys": True}
