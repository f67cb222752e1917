"""A hook of MkDocs: the documents at the root of the repository are pages of the site, too.

Pages link to them as they lie in the repository (`../ARCHITECTURE.md`), so that links work in both places.
"""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent.parent
DOCUMENTS = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
_UP = re.compile(r"\]\(\.\./(" + "|".join(map(re.escape, DOCUMENTS)) + r")(#[\w-]+)?\)")
_DOWN = re.compile(r"\]\(docs/([\w./-]+)(#[\w-]+)?\)")
_BESIDE = re.compile(r"\]\((" + "|".join(map(re.escape, DOCUMENTS)) + r")(#[\w-]+)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name, page in DOCUMENTS.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    if page.file.src_uri in DOCUMENTS.values():
        markdown = _DOWN.sub(r"](\1\2)", markdown)
        return _BESIDE.sub(lambda link: f"]({DOCUMENTS[link[1]]}{link[2] or ''})", markdown)
    return _UP.sub(lambda link: f"]({DOCUMENTS[link[1]]}{link[2] or ''})", markdown)
