"""Run a command; end all of it, and remove a folder, once standard input ends, as it does when the parent has died.

A program, not a module: python supervisor.py FOLDER COMMAND... A compiler starts processes of its own, which a signal
to the compiler alone, such as PR_SET_PDEATHSIG sends, does not reach.
"""

import os
import shutil
import signal
import subprocess
import sys
import threading


def end_command() -> None:
    """Wait for the end of standard input, then kill the command and what it has started."""
    while os.read(0, 1):
        pass
    orphaned.set()
    os.killpg(process.pid, signal.SIGKILL)


if __name__ == "__main__":
    folder, *command = sys.argv[1:]
    orphaned = threading.Event()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    threading.Thread(target=end_command, daemon=True).start()
    code = process.wait()
    if orphaned.is_set():
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(code & 0xFF)
