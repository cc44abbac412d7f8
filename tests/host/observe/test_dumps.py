"""Dumps in one folder: those of the last job are read."""

import json
from pathlib import Path

import pytest

from pyncclx.recording import dump, folders
from pyncclx.tools.observe.job import load
from support.records import well


def leave(folder, size, **fields):
    """Dumps of a job's ranks."""
    for rank in well(size, host=fields.pop("host", "a")):
        record = rank.rank(0).record | {"dumped_ns": rank.now_ns, **fields}
        (folder / f"rank-{rank.number}.json").write_text(json.dumps(record))


def test_an_earlier_job_is_left_out(tmp_path):
    leave(tmp_path, 4, job="job@1")
    leave(tmp_path, 3, job="job@2", dumped_ns=10**18)
    (tmp_path / "rank-2.json").unlink()  # killed: of the earlier job nothing stands for it
    job = load(tmp_path)
    assert (sorted(job.ranks), job.missing, job.size) == ([0, 1], [2], 3)
    assert job.notes == [f"{tmp_path / 'rank-3.json'} is of an earlier job"]


NAMES = [(("7-100", "8-200"), 2), (("job@1", "job@2"), 1), (("job@1", "job@1"), 2)]


@pytest.mark.parametrize(("names", "found"), NAMES)
def test_a_job_on_two_hosts(tmp_path, names, found):
    """Where the launcher has given no name, each host has one of its own."""
    leave(tmp_path, 2, host="a", job=names[0])
    path = tmp_path / "rank-1.json"
    record = json.loads(path.read_text())
    record["process"]["host"] = "b"
    path.write_text(json.dumps(record | {"job": names[1], "dumped_ns": 10**18}))
    assert len(load(tmp_path).ranks) == found


def test_another_users_folder_is_not_used(tmp_path, monkeypatch):
    """One that others can write to, or a link, in the folder for temporary files."""
    monkeypatch.setattr(dump.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.delenv("PYNCCLX_DUMP", raising=False)
    made = dump.folder()
    (tmp_path / "elsewhere").mkdir()
    made.parent.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError, match="only this user can write"):
        folders.own(made.parent)
    assert dump.write(dump.RING.get(), "a test", made) is None
    made.parent.unlink()
    assert dump.write(dump.RING.get(), "a test", made).parent == made
    assert made.parent.stat().st_mode & 0o777 == 0o700
    made.parent.chmod(0o777)
    assert dump.write(dump.RING.get(), "a test", made) is None
    assert list(Path(tmp_path / "elsewhere").iterdir()) == []
