"""Program that runs a command and kills it with its children if the parent dies.

It is run as ``python supervisor.py FOLDER COMMAND...``. When standard input ends, which also happens when the parent
dies, it kills the command's process group and removes the folder. A compiler starts processes of its own, which a
signal to the compiler alone (PR_SET_PDEATHSIG) does not reach.
"""

import os
import shutil
import signal
import subprocess
import sys
import threading


def end_command() -> None:
    """Wait until standard input ends, then kill the command and its children."""
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
