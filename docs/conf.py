"""Sphinx: `make docs`."""

from __future__ import annotations

from importlib.metadata import version as installed

project = "celery-redlock"
author = "The celery-redlock developers"
release = version = installed("celery-redlock")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.intersphinx"]
html_theme = "furo"
exclude_patterns = ["_build"]
default_role = "code"

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
nitpick_ignore_regex = [("py:.*", ".*")]
intersphinx_mapping: dict[str, tuple[str, None]] = {}
