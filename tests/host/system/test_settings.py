"""Environment variables: each is read in one place, has a documented value, and refuses what it cannot be."""

import re
import subprocess
from pathlib import Path

import pytest

from pyncclx.system import settings
from pyncclx.system.faults import Fault

ROOT = next(folder for folder in Path(__file__).resolve().parents if (folder / "setup.cfg").exists())
VALUES = {
    "PYNCCLX_DEVICE": [("host", "host"), ("gpu", "gpu")],
    "PYNCCLX_HEAP": [("16777216", 16 << 20), ("16M", 16 << 20), ("512k", 512 << 10), ("1G", 1 << 30)],
    "PYNCCLX_CHANNELS": [("1", 1), ("132", 132)],
    "PYNCCLX_TIMEOUT": [("0.5", 0.5), ("20", 20.0)],
    "PYNCCLX_NODE": [("a", "a"), ("node 2", "node 2")],
    "PYNCCLX_ENGINE": [("mpi", "mpi"), ("nccl", "nccl")],
    "PYNCCLX_BLOCKING": [("host", "host"), ("stream", "stream")],
    "PYNCCLX_CHECK": [("1", True), ("0", False)],
    "PYNCCLX_CACHE": [
        ("/tmp/kernels", (Path("/tmp/kernels"),)),
        ("/opt/kernels:/tmp/own", (Path("/opt/kernels"), Path("/tmp/own"))),
    ],
    "PYNCCLX_LINES": [("1", True), ("0", False)],
    "PYNCCLX_READY": [("1", True), ("0", False)],
    "PYNCCLX_AHEAD": [("1", True), ("0", False)],
    "PYNCCLX_VERBOSE": [("0", 0), ("2", 2)],
    "PYNCCLX_IPC": [("legacy", "legacy")],
    "PYNCCLX_RECORD": [("0", 0), ("2", 2)],
    "PYNCCLX_DUMP": [("/tmp/dump", Path("/tmp/dump"))],
    "PYNCCLX_SEED": [("12", 12)],
    "PYNCCLX_HOSTILE": [("1", True), ("0", False)],
    "PYNCCLX_SANITIZE": [("1", True), ("0", False)],
    "PYNCCLX_FAULT": [
        ("rank=2,call=Allreduce,nth=5,do=kill", (Fault(2, "Allreduce", 5, "kill"),)),
        ("call=Wait,do=stop:2,after=0.5", (Fault(None, "Wait", 1, "stop", 2.0, 0.5),)),
        ("rank=0,call=Put,do=skip; rank=1,call=Get", (Fault(0, "Put", 1, "skip"), Fault(1, "Get", 1, "kill"))),
    ],
}
REFUSED = {
    "PYNCCLX_DEVICE": ["cpu", "GPU"],
    "PYNCCLX_HEAP": ["big", "-1", "16T", "0", "0M"],
    "PYNCCLX_CHANNELS": ["0", "-1", "many", "2.0"],
    "PYNCCLX_TIMEOUT": ["soon", "inf", "nan", "0", "-1"],
    "PYNCCLX_ENGINE": ["ucx"],
    "PYNCCLX_BLOCKING": ["never"],
    "PYNCCLX_CHECK": ["yes"],
    "PYNCCLX_VERBOSE": ["3", "yes"],
    "PYNCCLX_IPC": ["cuda"],
    "PYNCCLX_RECORD": ["3", "on"],
    "PYNCCLX_SEED": ["x"],
    "PYNCCLX_HOSTILE": ["maybe"],
    "PYNCCLX_SANITIZE": ["2"],
    "PYNCCLX_FAULT": [
        *("rank=2", "call=Put,do=explode", "call=Put,do=kill:2", "call=Put,do=delay", "call=Put,nth=0"),
        *("rank=x,call=Put", "call=Put,nth=many"),
        *("call=Put,do=raise,after=1", "call=Put,when=later", "call=Put,do=delay:-1", "call=Put,after=inf"),
    ],
}
BY_NAME = {setting.name: setting for setting in settings.SETTINGS}


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    for name in BY_NAME:
        monkeypatch.delenv(name, raising=False)


def test_every_setting_is_tried_here():
    assert set(VALUES) == set(BY_NAME)


@pytest.mark.parametrize(("name", "text", "value"), [(name, *pair) for name in VALUES for pair in VALUES[name]])
def test_values(monkeypatch, name, text, value):
    monkeypatch.setenv(name, text)
    assert BY_NAME[name].get() == value
    assert BY_NAME[name].is_set


@pytest.mark.parametrize("name", VALUES)
def test_empty_is_the_default(monkeypatch, name):
    assert BY_NAME[name].get() == BY_NAME[name].default
    monkeypatch.setenv(name, "")
    assert BY_NAME[name].get() == BY_NAME[name].default
    assert not BY_NAME[name].is_set


@pytest.mark.parametrize(("name", "text"), [(name, text) for name in REFUSED for text in REFUSED[name]])
def test_what_cannot_be_is_refused(monkeypatch, name, text):
    monkeypatch.setenv(name, text)
    with pytest.raises(ValueError, match=f"^{name} is '{text}'; it can be "):
        BY_NAME[name].get()


def test_unknown_names_get_the_nearest(monkeypatch):
    assert list(settings.unknown()) == []
    monkeypatch.setenv("PYNCCLX_TIME_OUT", "3")
    monkeypatch.setenv("PYNCCLX_TEST_ALL", "1")
    (sentence,) = settings.unknown()
    assert sentence.startswith("PYNCCLX_TIME_OUT is no setting of pyncclx; did you mean PYNCCLX_TIMEOUT?")


def test_the_environment_is_read_in_one_place():
    found = subprocess.run(
        ["git", "grep", "-lE", r"os\.environ|getenv", "--", "pyncclx"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode > 1:
        pytest.skip("no git checkout")
    assert found.stdout.split() == ["pyncclx/system/settings.py"]


@pytest.mark.parametrize("setting", settings.SETTINGS, ids=lambda setting: setting.name)
def test_the_documentation_has_it(setting):
    row = f"| `{setting.name}` | {setting.text} | {setting.default_text} |"
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    assert any(row in page.read_text() for page in pages), row


def test_no_other_name_is_in_the_sources():
    names = {
        name for path in (ROOT / "pyncclx").rglob("*.py") for name in re.findall(r"PYNCCLX_[A-Z_]+", path.read_text())
    }
    assert names - set(BY_NAME) - {"PYNCCLX_", "PYNCCLX_TEST_", "PYNCCLX_API", "PYNCCLX_HOST"} == set()


def test_variables_of_other_programs_are_swapped(monkeypatch):
    monkeypatch.setenv("PMI_SIZE", "3")
    monkeypatch.delenv("PMI_FD", raising=False)
    replaced = settings.swap_foreign(("PMI_", "PMIX_"), {"PMI_FD": "5"})
    assert (settings.foreign("PMI_FD"), settings.foreign("PMI_SIZE"), replaced["PMI_SIZE"]) == ("5", None, "3")
    assert settings.swap_foreign(("PMI_", "PMIX_"), replaced) == {"PMI_FD": "5"}
    assert (settings.foreign("PMI_FD"), settings.foreign("PMI_SIZE")) == (None, "3")
