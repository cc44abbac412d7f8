"""The cache of compiled code: what is in it is not made again, and another key is another file."""

from pyncclx.backends.compilers import cache


def test_made_once(tmp_path, monkeypatch):
    monkeypatch.setenv("PYNCCLX_CACHE", str(tmp_path))
    made = []

    def make():
        made.append(1)
        return b"code"

    name = cache.file_name("kernel", ("sources", 1), ".bin")
    assert [cache.read_or_make(name, make) for _ in range(2)] == [b"code", b"code"]
    assert made == [1]
    assert list(tmp_path.iterdir()) == [cache.path_of(name)]


def test_names_have_all_of_the_key():
    keys = [("a", "bc"), ("ab", "c"), ("a", "b", "c"), ("a", "bc", None), (b"a", "bc")]
    assert len({cache.file_name("kernel", key, ".bin") for key in keys}) == len(keys)
    assert cache.file_name("kernel", keys[0], ".bin").startswith("kernel-")
