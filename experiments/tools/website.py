"""The documentation as a site: the hooks by which MkDocs finds its pages all over the repository.

mkdocs build --strict

A page keeps its place, so that links that work in the repository work on the site. What pages link to outside of the
documentation, sources and folders, becomes pages too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.tools.published import html_pages, published
from experiments.tools.readable_tables import ReadableTables
from experiments.tools.references import first_sentence, undescribed

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
SHOWN = {".py": "python", ".toml": "toml"}
"""Sources that are shown as pages, and their language."""

CODE = re.compile(r"^( *)(`{3,}).*?^\1\2|`[^`]+`", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(?<=\]\()([^)\s#]*)(#[^)\s]*)?(?=\))")


def pages() -> list[Path]:
    """Every page of the documentation; the first one is where the site starts."""
    top = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")]
    return top + sorted((ROOT / "docs").rglob("*.md"))


def links(text: str) -> Iterator[tuple[str, str]]:
    """The path and the anchor, without its ``#``, of every link of a page; code has none."""
    for link in LINK.finditer(CODE.sub("", text)):
        yield link[1], (link[2] or "")[1:]


def is_external(path: str) -> bool:
    """Whether a link leads out of the repository."""
    return ":" in path


def targets(page: Path) -> set[Path]:
    """The files and folders of the repository that a page links to."""
    paths = {path for path, _ in links(page.read_text(encoding="utf-8")) if path and not is_external(path)}
    return {(page.parent / path).resolve() for path in paths}


def on_config(config: MkDocsConfig) -> None:
    """Put every algorithm into the navigation, and let tables be read on any screen."""
    methods = next(item["Methods"] for item in config.nav or [] if "Methods" in item)
    section: list[Any] = next(item["Algorithms"] for item in methods if "Algorithms" in item)
    own = [page for page in pages() if page.parent.name == "algorithms" and page.stem != "README"]
    section += sorted(({_title(page): _place(page)} for page in own), key=lambda entry: str(*entry).lower())
    # As an object, because Python-Markdown imports names from installed packages only.
    config.markdown_extensions.append(ReadableTables())  # type: ignore[arg-type]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Take the pages from where they are, and add what they link to."""
    from mkdocs.structure.files import File, InclusionLevel

    for file in list(files):
        if file.src_dir == config.docs_dir:
            files.remove(file)
    for page in pages():
        files.append(File.generated(config, _place(page), abs_src_path=str(page)))
    linked = {target for page in pages() for target in targets(page)} - set(pages())
    if any(published(target) for target in linked):
        linked = {target for target in linked if not published(target)}
        for page, text in html_pages().items():
            files.append(File.generated(config, _place(page), content=text))
    folders = {target for target in linked if target.is_dir()}
    linked |= {source for folder in folders for source in folder.iterdir() if source.suffix in SHOWN}
    for target in sorted(linked):
        shown = _shown(target)
        if shown is None:
            files.append(File.generated(config, _place(target), abs_src_path=str(target)))
        else:
            aside = InclusionLevel.NOT_IN_NAV
            files.append(File.generated(config, _page_of(target), content=shown, inclusion=aside))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links to sources, folders and runs lead to their pages; searches leave sources out.

    An object of the API has its whole docstring here, so the sentence below its name is left out.
    """
    origin = ROOT / page.file.src_uri
    if origin not in pages():
        page.meta["search"] = {"exclude": True}
        return markdown
    if origin == ROOT / "README.md":
        page.meta["template"] = "home.html"

    def led(link: re.Match[str]) -> str:
        if not link[1] or is_external(link[1]):
            return link[0]
        target = (origin.parent / link[1]).resolve()
        shown = published(target) or (ROOT / _page_of(target) if _shown(target) is not None else None)
        return f"{os.path.relpath(shown, origin.parent)}{link[2] or ''}" if shown else link[0]

    return LINK.sub(led, undescribed(markdown))


def on_post_build(config: MkDocsConfig) -> None:
    """Put an overview for programs that read documentation beside the site."""
    text = for_programs(config.site_name, config.site_description or "", config.nav or [])
    (Path(config.site_dir) / "llms.txt").write_text(text, encoding="utf-8")


def for_programs(name: str, description: str, nav: list[Any]) -> str:
    """Title, link and first sentence of every page in the navigation, as ``llms.txt`` has them (llmstxt.org)."""
    lines = [f"# {name}", "", f"> {description}"]
    for section in nav:
        for heading, entries in section.items():
            lines += ["", f"## {heading}", ""]
            for path in _paths(entries):
                page = ROOT / path
                folder = Path(path).parent if page.stem in ("README", "index") else Path(path).with_suffix("")
                lines.append(f"- [{_title(page)}]({folder.as_posix()}/): {_first_sentence(page)}")
    return "\n".join(lines) + "\n"


def _paths(entry: Any) -> Iterator[str]:
    """The pages of a part of the navigation, in its order."""
    if isinstance(entry, str):
        yield entry
    else:
        for part in entry.values() if isinstance(entry, dict) else entry:
            yield from _paths(part)


def _first_sentence(page: Path) -> str:
    """The first sentence of a page, without links and code marks."""
    _, prose = re.split(r"^# .+\n", page.read_text(encoding="utf-8"), maxsplit=1, flags=re.MULTILINE)
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", first_sentence(prose)).replace("`", "")


def _title(page: Path) -> str:
    """The first heading of a page."""
    found = re.search(r"^# (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return found[1] if found else page.stem


def _place(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _page_of(target: Path) -> str:
    return f"{_place(target)}/index.md" if target.is_dir() else f"{_place(target)}.md"


def _shown(target: Path) -> str | None:
    """A source as a page, or a folder as a list of its files; None for what is neither."""
    if target.is_dir():
        names = sorted(path.name for path in target.iterdir() if path.is_file())
        entries = (f"- [{name}]({name}.md)" if Path(name).suffix in SHOWN else f"- {name}" for name in names)
        return f"# {_place(target)}\n\n" + "\n".join(entries) + "\n"
    if target.suffix in SHOWN and target.is_file():
        return f"# {_place(target)}\n\n````{SHOWN[target.suffix]}\n{target.read_text(encoding='utf-8')}\n````\n"
    return None
