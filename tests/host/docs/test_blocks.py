"""The code of README, of the documentation and of its tutorial runs, on two ranks of the host device."""

import re

import pytest

import launch
from pyncclx.tools.cli import COMMANDS, parse
from support import doc_blocks


def test_every_block_runs(capsys):
    blocks = [block for page in doc_blocks.PAGES for block in doc_blocks.blocks_of(page) if block.shown]
    not_here = sum(not block.can_run() for block in blocks)
    program = str(doc_blocks.ROOT / "tests" / "support" / "doc_blocks.py")
    ended = launch.job(2, "-m", "mpi4py", program, seconds=250, PYNCCLX_TIMEOUT="60")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    with capsys.disabled():
        ran, programs = len(blocks) - not_here, len(doc_blocks.FIRST_STEPS)
        print(f"\n{ran} blocks of the documentation and {programs} programs ran; {not_here} need a GPU, PyTorch or JAX")
    assert ran > 20


def test_a_wrong_block_is_found(tmp_path):
    """The place of the error is that in the page."""
    page = tmp_path / "page.md"
    page.write_text("# A page\n\n<!-- setup\nx = 1\n-->\n```python\nassert x == 1\nassert x == 2\n```\n")
    assert [(block.line, block.shown) for block in doc_blocks.blocks_of(page)] == [(4, False), (7, True)]
    with pytest.raises(AssertionError) as error:
        doc_blocks.run_page(page, None)
    assert (error.traceback[-1].path, error.traceback[-1].lineno + 1) == (page, 8)


def test_a_block_that_needs_a_gpu_is_left_out(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- needs a GPU -->\n```python\nimport no_such_module\n```\n")
    assert not doc_blocks.blocks_of(page)[0].can_run()
    doc_blocks.run_page(page, None)

    page.write_text("<!-- needs a GPU -->\n```python\nno python\n```\n")
    with pytest.raises(SyntaxError):
        doc_blocks.run_page(page, None)


def commands(page):
    """The arguments of `python -m pyncclx` in a page's indented blocks."""
    text = page.read_text().replace("\\\n", " ")
    lines = re.findall(r"^    .*python -m pyncclx ([a-z].*)$", text, re.MULTILINE)
    return [line.partition(" #")[0].split() for line in lines]


@pytest.mark.parametrize("page", doc_blocks.PAGES, ids=lambda page: page.stem)
def test_commands_have_these_arguments(page):
    for arguments in commands(page):
        assert parse(arguments).run


def test_every_command_is_in_the_reference():
    page = (doc_blocks.ROOT / "docs" / "reference" / "command_line.md").read_text()
    assert [name for name in COMMANDS if f"| `{name}` |" not in page] == []


def test_the_tutorial_has_six_programs():
    assert len(doc_blocks.FIRST_STEPS) == 7  # with start.py, which they share
