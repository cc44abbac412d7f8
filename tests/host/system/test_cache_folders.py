"""The folders of compiled kernels: which are used, which are refused, and what is used in their place."""

import os
import tempfile
from pathlib import Path

import pytest

from pyncclx.system import cache_folders, notes
from pyncclx.system.cache_folders import READY_DIR, cache_directory


@pytest.fixture(autouse=True)
def no_folders(monkeypatch, tmp_path):
    """None is set, none has been warned of, and private folders are this test's."""
    for name in ("PYNCCLX_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    notes._warned.clear()
    cache_folders._UNNAMED.reset()


def private(tmp_path):
    return tmp_path / "tmp" / f"pyncclx-{os.geteuid()}"


def test_where_it_is(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_directory() == tmp_path / "home" / ".cache" / "pyncclx"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "pyncclx"
    monkeypatch.setenv("PYNCCLX_CACHE", str(tmp_path / "own"))
    assert cache_directory() == tmp_path / "own"
    assert (tmp_path / "own").stat().st_mode & 0o777 == 0o700


def test_several(tmp_path, monkeypatch):
    """The last is the user's own; those before it, of whoever made them, are read, and missing ones do not matter."""
    shared, own = tmp_path / "shared", tmp_path / "own"
    shared.mkdir(mode=0o755)
    monkeypatch.setenv("PYNCCLX_CACHE", f"{shared}:{tmp_path / 'missing'}:{own}")
    assert cache_folders.cache_folders() == [READY_DIR, shared, own]
    assert not (tmp_path / "missing").exists()
    monkeypatch.setenv("PYNCCLX_READY", "0")
    assert cache_folders.cache_folders() == [shared, own]


def test_a_folder_that_others_write_is_refused(tmp_path, monkeypatch, caplog):
    own, shared = tmp_path / "own", tmp_path / "shared"
    for folder in (own, shared):
        folder.mkdir()
        folder.chmod(0o777)
    monkeypatch.setenv("PYNCCLX_CACHE", f"{shared}:{own}")
    for _ in range(2):
        assert cache_folders.cache_folders() == [READY_DIR, private(tmp_path)]
    first, second = [record.message for record in caplog.records]
    assert first == f"{shared} can be written by all users: the kernels there are not used"
    assert second.startswith(f"{own} can be written by other users: compiled kernels are kept in {private(tmp_path)};")
    own.chmod(0o770)
    everyone = cache_folders.grp.struct_group(("all", "", 7, []))
    monkeypatch.setattr(cache_folders.grp, "getgrgid", lambda number: everyone)
    assert cache_directory() == private(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a folder away")
def test_a_folder_of_another_user_is_refused(tmp_path, monkeypatch, caplog):
    own = tmp_path / "own"
    own.mkdir()
    os.chown(own, 12345, 12345)
    monkeypatch.setenv("PYNCCLX_CACHE", str(own))
    assert cache_folders.cache_folders() == [READY_DIR, private(tmp_path)]
    assert f"{own} belongs to another user" in caplog.text
    os.chown(private(tmp_path), 12345, 12345)
    unnamed = cache_directory()
    assert unnamed.parent == tmp_path / "tmp"
    assert unnamed.stat().st_mode & 0o777 == 0o700
    assert unnamed == cache_directory() != private(tmp_path)


def test_a_link_in_the_place_of_the_private_folder_is_refused(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    private(tmp_path).symlink_to(tmp_path / "elsewhere")
    assert cache_folders.private_directory() not in (private(tmp_path), tmp_path / "elsewhere")


def test_a_home_that_cannot_be_written(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    assert cache_directory() == private(tmp_path)
    assert cache_directory() == private(tmp_path)
    (record,) = caplog.records
    assert record.message.startswith(f"{tmp_path}/file/.cache/pyncclx cannot be created (Not a directory)")


def test_what_is_there_of_a_folder_that_is_only_read_is_used(tmp_path, monkeypatch):
    own = tmp_path / "own"
    own.mkdir(mode=0o700)
    monkeypatch.setenv("PYNCCLX_CACHE", str(own))
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != own)
    assert cache_folders.cache_folders() == [READY_DIR, own, private(tmp_path)]


def test_the_group_of_a_users_own_name_is_no_other(tmp_path, monkeypatch):
    folder = tmp_path / "own"
    folder.mkdir()
    folder.chmod(0o770)
    name = cache_folders.pwd.getpwuid(os.geteuid()).pw_name
    for group, members, refused in ((name, [], False), (name, ["guest"], True), ("users", [], True)):
        made = cache_folders.grp.struct_group((group, "", 7, members))
        monkeypatch.setattr(cache_folders.grp, "getgrgid", lambda number, made=made: made)
        assert (cache_folders._problem(folder) is not None) == refused
