"""Convert exceptions to bytes and back, to raise them on other ranks."""

import pickle


def pack_error(error: BaseException) -> bytes:
    """Return an exception as bytes for `unpack_error`."""
    text = type(error).__name__
    try:
        text += f": {error}" if str(error) else ""
        pickled = pickle.dumps(error)
        copy = pickle.loads(pickled)
        faithful = type(copy) is type(error) and str(copy) == str(error)
    except Exception:  # str() and pickle run code of the exception's class, which may raise anything
        faithful = False
    return pickle.dumps((pickled if faithful else b"", text))


def unpack_error(packed: bytes, failed: list[int], size: int) -> Exception:
    """Return a packed exception; its text or notes name the ranks that raised it.

    The result is a RuntimeError with the exception's name and text if the exception cannot be pickled or unpickled, or
    is KeyboardInterrupt or the like.
    """
    pickled, text = pickle.loads(packed)
    try:
        error = pickle.loads(pickled) if pickled else None
    except Exception:  # the class may exist on the failing rank only
        error = None
    return _naming_ranks(error if isinstance(error, Exception) else RuntimeError(text), failed, size)


def _naming_ranks(error: Exception, failed: list[int], size: int) -> Exception:
    """Return the error with the failed ranks in its text, or else in its notes."""
    where = f"[failed on rank{'s' * (len(failed) > 1)} {', '.join(map(str, failed))} of {size}]"
    before = str(error)
    if isinstance(error, OSError) and error.strerror:
        error.strerror = f"{error.strerror} {where}"
    elif error.args and isinstance(error.args[0], str):
        error.args = (f"{error.args[0]} {where}", *error.args[1:])
    if str(error) == before:
        error.__notes__ = [*getattr(error, "__notes__", []), where]
    return error
