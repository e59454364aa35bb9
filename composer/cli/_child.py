"""The first moments of a rank: logs, arguments, a life bound to the launcher's; then the program.

Run as a file by an isolated interpreter, so that it costs milliseconds: it imports nothing of this
package. What it is asked to do comes as one hexadecimal JSON argument, because the elastic agent
rewrites dollar signs in what it passes on.
"""

import ctypes
import json
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_CANNOT_RUN = 127


def _die_with(launcher: int) -> None:
    """Has the kernel kill this process when the launcher is gone, however it went (Linux only)."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != launcher:  # it went before the request was made
        os.kill(os.getpid(), signal.SIGKILL)


def _redirect(path: str, descriptor: int, link: str) -> None:
    """Appends what is written to ``descriptor`` to a file, and tells the launcher which it is."""
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(file, descriptor)
    os.close(file)
    aside = f"{link}.{os.getpid()}"
    os.symlink(os.path.abspath(path), aside)
    os.replace(aside, link)  # over that of an earlier try


def main() -> None:
    """Sets the rank up and replaces itself by the program."""
    task = json.loads(bytes.fromhex(sys.argv[1]))
    _die_with(task["launcher"])
    os.environ["NODE_RANK"] = os.environ["GROUP_RANK"]
    if os.environ["LOCAL_RANK"] != "0":
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "NODE_RANK", "LOCAL_WORLD_SIZE")
        place = {name.lower(): os.environ[name] for name in names}
        link = os.path.join(task["folder"], os.environ["RANK"])
        _redirect(task["stdout"].format(**place), 1, f"{link}.stdout")
        _redirect(task["stderr"].format(**place), 2, f"{link}.stderr")
    arguments = [os.path.expandvars(os.path.expanduser(text)) for text in task["arguments"]]
    command = [*task["program"], *arguments]
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"composer: cannot run {command[0]!r}: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(_CANNOT_RUN)


if __name__ == "__main__":
    main()
