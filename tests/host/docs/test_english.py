"""What a machine can see of plain English: short summaries, whole comments, sentences and code lines that fit."""

import ast
import io
import re
import textwrap
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SUMMARY, SENTENCE, CODE, PAGE, CHANGE = 80, 40, 76, 150, 160  # characters, words, characters, lines, characters
POINTERS = re.compile(r"(Do so|Do the same|Do it|As |The same)")  # a docstring that begins so does not stand alone
FRAGMENTS = re.compile(r"(?:^|[.:]\s+)(As (?:mpi4py|MPI)'s \S+)\.", re.MULTILINE)  # a sentence without a verb
HALVES = re.compile(r"#\s*(of|that|by|which|whose|else)\b")  # a comment that begins so is half a clause

SOURCES = [path for top in ("mpi_bootstrap", "pyncclx") for path in sorted((ROOT / top).rglob("*.py"))]

SECTIONS = ("guide", "howto", "reference", "tutorial")
FOR_USERS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FOR_USERS += [page for folder in SECTIONS for page in sorted((ROOT / "docs" / folder).glob("*.md"))]
GUIDES = [page for page in FOR_USERS if page.parent.name in ("guide", "howto")]
# A fence may be in a list, so indented.
FENCED = re.compile(r"^(?P<indent> *)```(?P<kind>.*)\n(?P<code>(?:.*\n)*?)^(?P=indent)```", re.MULTILINE)
INCLUDED = re.compile(r"\{literalinclude\} (\S+)")
INDENTED = re.compile(r"^(?: {4}|\||#|:|<!--).*$", re.MULTILINE)  # commands, tables, headings
COMMANDS = re.compile(r"^ {4}(?!\* )(\S.*)$", re.MULTILINE)  # code without a fence, not a list in a list
IN_LISTS = re.compile(r"(?<=\n\n)(?: {6}.*\n)+")  # the same in a list


def name_of(path: Path) -> str:
    """The path from the root, as the name of a test."""
    return str(path.relative_to(ROOT))


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The line and the text of every docstring."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "lineno", 1), text


def faults_of_docstrings(source: str) -> list[str]:
    """Docstrings with a summary or a line of an example that is too long, or that do not stand alone."""
    faults = []
    for line, text in docstrings(ast.parse(source)):
        summary = text.splitlines()[0]
        if len(summary) > SUMMARY:
            faults.append(f"{line}: {len(summary)} characters: {summary}")
        if POINTERS.match(summary):
            faults.append(f"{line}: does not stand alone: {summary}")
        faults += [f"{line}: without a verb: {each}" for each in FRAGMENTS.findall(text)]
        shown = re.findall(r"^ *((?:>>>|\.\.\.) .*?)(?:  # doctest: .*)?$", text, re.MULTILINE)  # as the site shows it
        wide = [each for each in shown if len(each) > CODE]
        faults += [f"{line}: {len(each)} characters: {each}" for each in wide]
    return faults


def faults_of_comments(source: str) -> list[str]:
    """Comments behind code that are half a clause."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = [token for token in tokens if token.type == tokenize.COMMENT and token.line[: token.start[1]].strip()]
    return [f"{token.start[0]}: {token.string}" for token in comments if HALVES.match(token.string)]


def long_sentences(page: str) -> list[str]:
    """Sentences of a page's prose that have too many words."""
    prose = INDENTED.sub("", FENCED.sub("", page))
    paragraphs = re.split(r"\n\s*\n|\n\s*[*-] |\n\s*\d+\. ", prose)
    parts = (re.split(r"(?<=[.!?:;])\s+(?=[A-Z`*\[(])", " ".join(paragraph.split())) for paragraph in paragraphs)
    return [sentence for some in parts for sentence in some if len(sentence.split()) > SENTENCE]


def wide_lines(page: str, folder: Path = ROOT) -> list[str]:
    """Lines of a page's code that need a scroll bar: blocks, commands, and programs included from `folder`."""
    others = FENCED.sub("", page)
    lines = COMMANDS.findall(others)
    lines += [line[6:] for block in IN_LISTS.findall(others) for line in block.splitlines()]
    for found in FENCED.finditer(page):
        included = INCLUDED.match(found["kind"])
        if included is not None:
            lines += (folder / included[1]).read_text().splitlines()
        elif not found["kind"].startswith("{"):
            lines += textwrap.dedent(found["code"]).splitlines()
    return [line for line in lines if len(line) > CODE]


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_docstrings_and_comments(path):
    source = path.read_text()
    assert faults_of_docstrings(source) + faults_of_comments(source) == []


@pytest.mark.parametrize("page", FOR_USERS, ids=name_of)
def test_sentences_and_code_fit(page):
    text = page.read_text()
    assert long_sentences(text) + wide_lines(text, page.parent) == []


@pytest.mark.parametrize("page", GUIDES, ids=name_of)
def test_guides_are_short(page):
    assert len(page.read_text().splitlines()) <= PAGE


def faults_of_changes(text: str) -> list[str]:
    """Entries that are too long, or do not say at once what kind of change they are."""
    entries = re.findall(r"^\* (.*(?:\n  .*)*)", text, re.MULTILINE)
    said = [" ".join(entry.split()) for entry in entries]
    return [entry for entry in said if len(entry) > CHANGE or not re.match(r"(Added|Changed|Fixed|Removed)\b", entry)]


def test_changes_are_a_line_each():
    assert faults_of_changes((ROOT / "CHANGES.md").read_text()) == []


def test_included_programs_are_seen(tmp_path):
    (tmp_path / "wide.py").write_text(f"x = 1\n# {'word ' * 41}\n")
    assert len(wide_lines("```{literalinclude} wide.py\n:language: python\n```\n", tmp_path)) == 1


def test_faults_are_found():
    """Each rule finds what breaks it."""
    long = "word " * 41
    assert faults_of_docstrings(f'"""{long}"""\n') != []
    assert faults_of_docstrings('def f():\n    """As `g`, but later."""\n') != []
    assert faults_of_docstrings('def f():\n    """Put data.\n\n    As mpi4py\'s `Put`.\n    """') != []
    assert faults_of_docstrings(f'def f():\n    """Call.\n\n    >>> f("{long}")\n    """\n') != []
    assert faults_of_comments("x = 1  # of the peer\n") != []
    assert faults_of_comments("# of the peer\nx = 1  # bytes\n") == []
    assert long_sentences(f"# Page\n\n{long}.\n\n* {long}\n") != []
    assert long_sentences(f"# Page\n\n    {long}\n") == []
    assert wide_lines(f"```python\n{long}\n```\n") != []
    assert wide_lines(f"Run this:\n\n    {long}\n") != []
    assert wide_lines(f"* A list\n    * in {long}\n") == []
    assert wide_lines(f"* A list\n\n      {long}\n") != []
    assert wide_lines(f"* A list\n\n  ```python\n  {long}\n  ```\n") != []
    assert faults_of_changes(f"## Unreleased\n\n* Fixed: {long}\n* It works.\n* Added a line.\n") == [
        f"Fixed: {long.strip()}", "It works."
    ]
