"""What the soak takes for a leak."""

import soak


def test_what_is_measured_is_no_leak():
    assert soak.leaks(14_600_000, 25, 7978) == []
    assert soak.leaks(-5_000_000, soak.MOST_DESCRIPTORS, 100) == []


def test_a_leak_of_some_kilobytes_each():
    (text,) = soak.leaks(8000 * 6000, 0, 8000)
    assert text == "48.0 MB more, of 32.0 at most"


def test_a_descriptor_of_each_communicator_that_mpi_frees():
    (text,) = soak.leaks(0, 300, 8000)
    assert text.startswith("300 descriptors more")
