"""Reports: as lines on stderr, or to the program's log handlers; what is shown for each value of PYNCCLX_VERBOSE."""

import logging
import time

import pytest

from pyncclx.system import notes


@pytest.fixture
def no_handlers(monkeypatch):
    """As in a program that has not set up logging; pytest has."""
    monkeypatch.setattr(notes.LOGGER, "hasHandlers", lambda: False)


LINES = {"0": ["warning"], "1": ["warning", "info"], "2": ["warning", "info", "debug"]}


@pytest.mark.parametrize(("verbose", "shown"), LINES.items())
def test_lines_on_stderr(no_handlers, monkeypatch, capsys, verbose, shown):
    monkeypatch.setenv("PYNCCLX_VERBOSE", verbose)
    for level in (logging.WARNING, logging.INFO, logging.DEBUG):
        notes.note(level, logging.getLevelName(level).lower())
    assert capsys.readouterr().err.splitlines() == [f"pyncclx: {text}" for text in shown]


def test_log_handlers_of_the_program_take_all(capsys, caplog):
    caplog.set_level(logging.DEBUG, "pyncclx")
    notes.note(logging.DEBUG, "text")
    assert [(record.name, record.message) for record in caplog.records] == [("pyncclx", "text")]
    assert capsys.readouterr().err == ""


def test_a_warning_is_reported_once(no_handlers, capsys):
    notes._warned.clear()
    notes.warn_once("text")
    notes.warn_once("text")
    assert capsys.readouterr().err == "pyncclx: text\n"


@pytest.mark.parametrize("reports", [True, False])
def test_what_takes_long_is_reported_while_it_does(no_handlers, monkeypatch, capsys, reports):
    monkeypatch.setattr(notes, "LONG_S", 0.2)
    with notes.reported_if_long("kernel for host", lambda: "/folder", reports=reports):
        time.sleep(0.5)
        begun = capsys.readouterr().err
    done = capsys.readouterr().err
    with notes.reported_if_long("kernel for host", lambda: "/folder", reports=reports):
        pass
    assert capsys.readouterr().err == ""
    if not reports:
        assert begun == done == ""
        return
    assert begun.startswith("pyncclx: compiling kernel for host, 0.")
    assert begun.endswith(" s so far; kept in /folder\n")
    assert done.startswith("pyncclx: kernel for host: ready after 0.")
