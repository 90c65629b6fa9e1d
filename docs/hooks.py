"""What the site needs beside mkdocs: the repository's files that pages link to, comments on fields as their
documentation, and a check of what was built.

A page links to a file outside docs/ by its place in the repository, so that the link also works there. The
site has such files under repository/: code as a page of its own, other files as they are.
"""

import logging
import posixpath
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

log = logging.getLogger("mkdocs.fedsaddle")  # below mkdocs, so that --strict counts its warnings

ROOT = Path(__file__).parent.parent
COPIES = "repository/"
PAGES = ("CONTRIBUTING.md", "CHANGELOG.md")  # outside docs/ and in the navigation
CODE = {".py": "python", ".toml": "toml"}
LINK = re.compile(r"(?<=\]\()(?!\w+:)([^)#\s]+)")
LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}


def in_repository(uri: str) -> str:
    """Where the source of a page is, seen from the root of the repository."""
    return uri.removeprefix(COPIES).removesuffix(".md" if Path(uri).stem.endswith(tuple(CODE)) else "")


def linked(uri: str, target: str) -> str:
    """The file that a page links to, seen from the root of the repository."""
    source = in_repository(uri) if uri.startswith(COPIES) else f"docs/{uri}"
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), target))


def place(path: str) -> str:
    """Where the site has a file of the repository."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"{COPIES}{path}{'.md' if Path(path).suffix in CODE else ''}"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files outside docs/ that a page links to."""
    texts = {file.src_uri: file.content_string for file in files.documentation_pages()}
    texts |= {place(path): (ROOT / path).read_text() for path in PAGES}
    paths = {linked(uri, target) for uri, text in texts.items() for target in LINK.findall(text)}
    for path in sorted(paths | set(PAGES)):
        source = ROOT / path
        if path.startswith("docs/") or not source.is_file():
            continue  # what is not there is warned of as a broken link
        held = {"abs_src_path": str(source)}
        if language := CODE.get(source.suffix):
            held = {"content": f"# {source.name}\n\n`{path}`\n\n````{language}\n{source.read_text()}````\n"}
        where = InclusionLevel.INCLUDED if path in PAGES else InclusionLevel.NOT_IN_NAV
        files.append(File.generated(config, place(path), inclusion=where, **held))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links at where the site has what they lead to."""
    uri = page.file.src_uri
    if uri.startswith(COPIES) and in_repository(uri) not in PAGES:
        return markdown  # code
    here = posixpath.dirname(uri)
    return LINK.sub(lambda found: posixpath.relpath(place(linked(uri, found[1])), here), markdown)


class Comments(griffe.Extension):
    """The comment behind a field of a class is what the field's docstring would be."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        comment = re.search(r"  # (.*)", attr.source)
        if attr.docstring is None and comment and attr.parent is not None and attr.parent.is_class:
            attr.docstring = griffe.Docstring(comment[1], parent=attr)


class Links(HTMLParser):
    """The anchors of a built page, the links on it, and what a browser loads with it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors, self.links, self.loaded = set[str](), set[str](), set[str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        held = dict(attributes)
        self.anchors |= {held.get("id") or "", held.get("name") or ""}
        self.links |= {held.get("href") or "", held.get("src") or ""}
        self.loaded.add(held.get(LOADS.get(tag, "")) or "")


def on_post_build(config: MkDocsConfig) -> None:
    """Every link within the site leads to a file and an anchor, and nothing is loaded from another host."""
    site = Path(config.site_dir).resolve()
    pages = {path: Links(path.read_text()) for path in site.rglob("*.html") if path.name != "404.html"}
    for path, page in pages.items():
        name = path.relative_to(site)
        for link in sorted(page.loaded):
            if urlsplit(link).netloc:
                log.warning("%s loads %s, from another host", name, link)
        for link in sorted(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not (target / "index.html" if target.is_dir() else target).is_file():
                log.warning("%s links to %s, which is not there", name, link)
            elif target in pages and unquote(parts.fragment) not in pages[target].anchors:
                log.warning("%s links to %s, a page without that anchor", name, link)
    log.info("%d pages, and every link on them, were looked at", len(pages))
