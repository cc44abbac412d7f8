"""The site's configuration for Sphinx; `make docs` builds it in docs/_build/html.

Pages can be read beside the sources too, so their links lead to files. `follow_links` turns links to files outside of
this folder into links within the site.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("PYNCCLX_DEVICE", "host")

import pyncclx  # noqa: E402

project = "pyncclx"
author = "pyncclx developers"
copyright = "2026, pyncclx developers"
version = release = pyncclx.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
highlight_language = "text"  # of indented blocks: commands
html_theme = "furo"
html_title = "pyncclx"
html_static_path = ["static"]
html_css_files = ["tables.css", "screens.css"]
html_copy_source = False
html_show_sphinx = False

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
suppress_warnings = ["myst.header", "docutils"]  # headings of included pages; layout of mpi4py's docstrings
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

autodoc_member_order = "bysource"
autodoc_mock_imports = [] if importlib.util.find_spec("torch") else ["torch"]
autodoc_typehints = "none"
autodoc_default_options = {"members": True}
default_role = "code"
napoleon_google_docstring = False
napoleon_use_rtype = False

# Files outside of this folder that are pages of the site.
PAGES = {
    "README.md": "index.md",
    "CHANGES.md": "project/changes.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "examples/README.md": "examples.md",
    "examples/benchmarks/README.md": "measurements.md",
}
PICTURE = re.compile(r"^!\[([^\]]*)\]\(([^):]+)\.svg\)$", re.MULTILINE)
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#:\s]+)(#[^)]*)?\)")


def follow_links(app: Any, page: str, source: list[str]) -> None:
    """Make links of a page that leave this folder lead to pages of the site, to downloads, or nowhere."""
    sources = {made: path for path, made in PAGES.items() if made != "index.md"}
    folder = (ROOT / sources.get(f"{page}.md", f"docs/{page}.md")).parent
    source[0] = LINK.sub(lambda link: _followed(link, folder, page), source[0])


def _followed(link: re.Match[str], folder: Path, page: str) -> str:
    label, target, anchor = link[1], link[2], link[3] or ""
    path = (folder / target).resolve()
    inside = PAGES.get(str(path.relative_to(ROOT))) if path.is_relative_to(ROOT) else None
    if inside is not None:
        return f"[{label}](/{inside}{anchor})"
    if path.is_dir():
        readme = path / "README.md"
        return _followed_readme(label, readme) if readme.exists() else label
    if not path.is_relative_to(DOCS) or folder != (DOCS / page).parent:
        return f"[{label}]({os.path.relpath(path, (DOCS / page).parent)}{anchor})"
    return link[0]


def _followed_readme(label: str, readme: Path) -> str:
    inside = PAGES.get(str(readme.relative_to(ROOT)))
    return f"[{label}](/{inside})" if inside else label


def read_page(app: Any, page: str, source: list[str]) -> None:
    """A page of `PAGES` has the text of its file; images in it are found from here."""
    path = next((path for path, made in PAGES.items() if made == f"{page}.md" and made != "index.md"), None)
    if path is not None:
        text = (ROOT / path).read_text()
        beside = os.path.relpath((ROOT / path).parent, (DOCS / page).parent)
        source[0] = re.sub(r"!\[([^\]]*)\]\(([^):]+)\)", rf"![\1]({beside}/\2)", text)


def show_variants(app: Any, page: str, source: list[str]) -> None:
    """A picture that has variants is shown in the one that fits: X-dark.svg, X-narrow.svg, X-narrow-dark.svg."""
    source[0] = PICTURE.sub(lambda found: _variants(found, (DOCS / page).parent), source[0])


def _variants(found: re.Match[str], folder: Path) -> str:
    label, path = found[1], found[2]
    if not (folder / f"{path}-narrow-dark.svg").exists():
        return found[0]
    fits = {"": "only-light only-wide", "-dark": "only-dark only-wide"}
    fits |= {"-narrow": "only-light only-narrow", "-narrow-dark": "only-dark only-narrow"}
    return "\n".join(
        f":::{{image}} {path}{suffix}.svg\n:alt: {label}\n:class: {classes}\n:::\n" for suffix, classes in fits.items()
    )


def setup(app: Any) -> None:
    """Connect what reads pages."""
    app.connect("source-read", read_page)
    app.connect("source-read", follow_links)
    app.connect("source-read", show_variants)
