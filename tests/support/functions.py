"""Which functions of pyncclx a call enters."""

import sys

DEVICE = "/pyncclx/backends/host/"


def entered(call):
    """Return the functions that a call enters, by file and name.

    What the host device's own part (`pyncclx/backends/host`) enters, and what it calls, is not counted.
    """
    functions, of_device = [], []  # `of_device`: the device's functions that have not returned yet

    def note(frame, event, _):
        code = frame.f_code
        if event == "call" and (of_device or DEVICE in code.co_filename):
            of_device.append(code)
        elif event == "call" and "/pyncclx/" in code.co_filename:
            functions.append(f"{code.co_filename}:{code.co_firstlineno} {code.co_qualname}")
        elif event == "return" and of_device:
            of_device.pop()

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return functions[1:]  # not the function that makes the call
