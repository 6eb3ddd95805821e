"""Hooks of mkdocs: add pages from outside `docs`, rewrite links, refuse pages that load from other hosts."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
# A file of the repository -> its path in the site.
OUTER_PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "k8s/README.md": "kubernetes.md",
    "LICENSE": "LICENSE.txt",
}
LINK = re.compile(r"\]\((?!https?:|#|/)([^)#\s]+)((?:#[^)\s]*)?)\)")
LOADED = re.compile(r"<(?:script|img|iframe|link)[^>]*(?:src|href)=[\"']?(?:https?:)?//[^\"'>\s]+")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie outside `docs`."""
    for source, target in OUTER_PAGES.items():
        files.append(File.generated(config, target, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Rewrite links from paths of the repository to paths of the site."""
    sources = {target: source for source, target in OUTER_PAGES.items()}
    uri = page.file.src_uri
    folder = posixpath.dirname(sources.get(uri, f"docs/{uri}"))

    def rewritten(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, match[1]))
        in_site = OUTER_PAGES.get(target, target.removeprefix("docs/"))
        return f"]({posixpath.relpath(in_site, posixpath.dirname(uri) or '.')}{match[2]})"

    return LINK.sub(rewritten, markdown)


def on_post_page(output: str, page: Page, **_: object) -> str:
    """Return the page; raise PluginError if it would load anything from another host."""
    return checked(output, page.file.src_uri)


def on_post_template(output_content: str, template_name: str, **_: object) -> str:
    """Return the output of a template, such as 404.html, under the same check."""
    return checked(output_content, template_name)


def checked(output: str, name: str) -> str:
    """Return a page that loads nothing from another host; raise PluginError otherwise."""
    if loaded := LOADED.search(output):
        raise PluginError(f"{name} loads from another host: {loaded[0]}. Ship the file instead.")
    return output
