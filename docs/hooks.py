"""What the site adds to the pages of docs/: those at the root of the repository, and the examples, with their links.

The pages are also read in the repository as they are, so their links lead to files there. Here the same files get a
place on the site, and links between them are written anew: `../README.md` becomes `index.md`.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
# where a file of the repository stands on the site; other pages stand where they stand in docs/
MOVED = {
    "README.md": "index.md",
    "docs/README.md": "pages.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CITATION.cff": "CITATION.cff",
}
EXAMPLES = {f"examples/{path.name}": f"examples/{path.stem}.md" for path in sorted((ROOT / "examples").glob("*.py"))}
PLACES = MOVED | EXAMPLES
SOURCES = {place: source for source, place in PLACES.items()}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Put the files of the repository in their places."""
    index = files.get_file_from_path("README.md")
    if index is not None:
        files.remove(index)
    for source, place in PLACES.items():
        content = (ROOT / source).read_text()
        files.append(File.generated(config, place, content=_example(content) if source in EXAMPLES else content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Write links anew: from where the page stands in the repository to where the target stands on the site."""
    here = page.file.src_uri
    source = SOURCES.get(here, f"docs/{here}")

    def place(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link[1]))
        there = PLACES.get(target, target.removeprefix("docs/"))
        anchor = link[2] or ""
        return f"]({posixpath.relpath(there, posixpath.dirname(here) or '.')}{anchor})"

    linked = re.sub(r"\]\((?![a-z]+:|#)([^)#\s]+)(#[^)]*)?\)", place, markdown)
    rows = re.compile(r"^\|.*$", re.M)  # of tables: a number stays on one line with its error
    return rows.sub(lambda row: re.sub(r"(?<=\d) ± (?=\d)", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}", row[0]), linked)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Name the search for screen readers, and let the keyboard reach code, whose long lines scroll."""
    search = 'data-md-component="search" role="dialog"'
    named = output.replace(search, f'{search} aria-label="Search"')
    return named.replace("<pre><span></span><code>", '<pre tabindex="0"><span></span><code>')


def on_post_build(config: MkDocsConfig) -> None:
    """Give the search an index that can be read without a server, and refuse a site that needs a network."""
    search = Path(config.site_dir) / "search"
    (search / "search_index.js").write_text(f"var __index = {(search / 'search_index.json').read_text()}")
    fetched = re.compile(r'<(?:script|link|img|iframe)\b[^>]*?\b(?:src|href)="?((?:https?:)?//[^"\s>]+)')
    for path in sorted(Path(config.site_dir).rglob("*.html")):
        for address in fetched.findall(path.read_text()):
            raise PluginError(f"{path.name} fetches {address}: a page of the site must bring along all that it shows")
    for path in sorted(Path(config.site_dir).rglob("*.css")):
        if re.search(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", path.read_text()):
            raise PluginError(f"{path.name} fetches something: a style of the site must bring along all that it shows")


def _example(text: str) -> str:
    """A page that shows a script: its docstring as prose, then its code."""
    _, story, code = text.split('"""', 2)
    return f"# {story.split(':')[0]}\n\n{story.strip()}\n\n```python\n{code.strip()}\n```\n"
