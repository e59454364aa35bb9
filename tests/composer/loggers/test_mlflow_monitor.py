"""A run whose process is gone does not stay open: killed, out of memory, or told to end."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

pytest.importorskip("mlflow")
pytest.importorskip("sqlalchemy")

import mlflow

from composer.loggers.mlflow_logger import MlflowMonitorProcess

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning:mlflow.*"),
]


@pytest.fixture
def uri(tmp_path):
    return f"sqlite:///{tmp_path}/mlflow.db"


@pytest.fixture
def run_id(uri):
    return mlflow.MlflowClient(uri).create_run("0").info.run_id


def status_of(uri, run_id):
    return mlflow.MlflowClient(uri).get_run(run_id).info.status


def until_ended(uri, run_id):
    end = time.monotonic() + 60
    while (status := status_of(uri, run_id)) == "RUNNING" and time.monotonic() < end:
        time.sleep(0.1)
    return status


def test_a_process_that_is_killed(uri, run_id):
    program = """
        import os, sys, signal
        from composer.loggers.mlflow_logger import MlflowMonitorProcess

        MlflowMonitorProcess(os.getpid(), *sys.argv[1:]).start()
        os.kill(os.getpid(), signal.SIGKILL)
    """
    env = dict(os.environ, PYTHONPATH=os.getcwd())
    command = [sys.executable, "-c", textwrap.dedent(program), run_id, uri]
    assert subprocess.run(command, env=env).returncode == -signal.SIGKILL
    assert until_ended(uri, run_id) == "FAILED"


def test_a_monitor_that_is_told_to_end(uri, run_id):
    monitor = MlflowMonitorProcess(os.getpid(), run_id, uri)
    monitor.start()
    time.sleep(1)  # until it listens
    monitor._process.terminate()
    assert until_ended(uri, run_id) == "KILLED"
    monitor.stop()


def test_who_told_mlflow_itself_ends_the_watch(uri, run_id):
    monitor = MlflowMonitorProcess(os.getpid(), run_id, uri)
    monitor.start()
    monitor.stop()
    assert status_of(uri, run_id) == "RUNNING"
    monitor = MlflowMonitorProcess(os.getpid(), run_id, uri)
    monitor.start()
    monitor.crash()
    assert status_of(uri, run_id) == "FAILED"
