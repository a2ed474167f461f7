"""The site of the documentation: settings of Sphinx. `make docs` builds it, by `docs/build_site.py`."""

from __future__ import annotations

from pathlib import Path

import hpcagent

project = "hpcagent"
author = "the hpcagent developers"
copyright = "MIT licence"
version = release = hpcagent.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon"]
exclude_patterns = ["**/.ipynb_checkpoints"]

# Headings are link targets, as they are where the pages are read in a checkout.
myst_heading_anchors = 4

# Notebooks are run when the site is built, so that their outputs are those of this code.
nb_execution_mode = "cache"
nb_execution_cache_path = str(Path(__file__).resolve().parent / "_build" / "notebooks")
nb_execution_timeout = 600
nb_execution_raise_on_error = True
nb_merge_streams = True

# Docstrings have code in single backticks, as Markdown does.
default_role = "code"
napoleon_google_docstring, napoleon_numpy_docstring = True, False
napoleon_use_ivar = True
autosummary_generate = True
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "exclude-members": "__init__, model_config, model_post_init"}
autodoc_typehints = "signature"
python_use_unqualified_type_names = True
add_module_names = False

# Nothing is loaded from elsewhere: fonts, scripts and styles are the theme's own files.
html_theme = "pydata_sphinx_theme"
html_title = "hpcagent"
html_show_sourcelink = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {
    "navigation_depth": 2,
    "navbar_align": "left",
    "header_links_before_dropdown": 7,
    "footer_start": ["copyright"],
    "footer_end": [],
    "search_bar_text": "Search",
}


def _has_its_own_page(app, what, name, member, skip, options):
    """Whether a module's member is a name of `hpcagent` itself: described once, where people import it from."""
    return True if what == "module" and name in hpcagent.__all__ else skip


def setup(app):
    """Called by Sphinx."""
    app.connect("autodoc-skip-member", _has_its_own_page)
