"""Tells MLflow that a run has ended when the process that trained can do so no more.

It is a process of its own, started from this file so that it imports nothing but MLflow, and that
only when there is something to tell.
"""

import os
import select
import signal
import subprocess
import sys
from types import FrameType

__all__ = ["MlflowMonitorProcess"]

_LOOK_EVERY_SECONDS = 1.0


class MlflowMonitorProcess:
    """Marks a run as failed if the process that trains is gone, as killed if it is told to end.

    Args:
        main_pid: The process that trains, which starts this one.
        mlflow_run_id: The run.
        mlflow_tracking_uri: Where the run is.
    """

    def __init__(self, main_pid: int, mlflow_run_id: str, mlflow_tracking_uri: str) -> None:
        self.main_pid = main_pid
        self.mlflow_run_id = mlflow_run_id
        self.mlflow_tracking_uri = mlflow_tracking_uri
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts watching."""
        arguments = [str(self.main_pid), self.mlflow_run_id, self.mlflow_tracking_uri]
        command = [sys.executable, __file__, *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE)

    def stop(self) -> None:
        """Ends the watch: MLflow knows how the run has ended."""
        self._end(b"stop")

    def crash(self) -> None:
        """Ends the watch: the run has failed, and MLflow does not know."""
        self._end(b"crash")

    def run(self) -> None:
        """Watches; runs in the process of its own."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one that trains answers it, and tells
        signal.signal(signal.SIGTERM, self.handle_sigterm)
        while not select.select([sys.stdin], [], [], _LOOK_EVERY_SECONDS)[0]:
            if os.getppid() != self.main_pid:  # workers may hold the pipe open a little longer
                break
        else:
            if sys.stdin.read() == "stop":
                return
        self._mark("FAILED")

    def handle_sigterm(self, signum: int, frame: FrameType | None) -> None:
        """Marks the run as killed."""
        self._mark("KILLED")
        sys.exit(128 + signum)

    def _end(self, word: bytes) -> None:
        if self._process is not None:
            self._process.communicate(word)
            self._process = None

    def _mark(self, status: str) -> None:
        import mlflow

        client = mlflow.MlflowClient(self.mlflow_tracking_uri)
        client.set_terminated(self.mlflow_run_id, status)


if __name__ == "__main__":
    del sys.path[0]  # the folder of this file is nobody's package
    MlflowMonitorProcess(int(sys.argv[1]), *sys.argv[2:4]).run()
