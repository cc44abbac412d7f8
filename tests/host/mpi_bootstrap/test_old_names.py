"""Old public names of mpi_bootstrap: they still work, with a warning that names the new ones."""

import pytest

import mpi_bootstrap


@pytest.mark.parametrize(("old", "new"), [("Judge", "WaitPolicy"), ("judge_by", "set_wait_policy")])
def test_an_old_name_warns_and_is_the_new_one(old, new):
    with pytest.warns(DeprecationWarning, match=f"mpi_bootstrap.{old} is now mpi_bootstrap.{new}"):
        found = getattr(mpi_bootstrap, old)
    assert found is getattr(mpi_bootstrap, new)


def test_an_old_name_is_not_listed():
    assert "Judge" not in mpi_bootstrap.__all__


def test_a_name_that_never_was_raises():
    with pytest.raises(AttributeError, match="no attribute 'Judges'"):
        _ = mpi_bootstrap.Judges
