import subprocess
import sys

import pytest

from composer.utils.background import BackgroundThreads


def test_calls_run_in_order_and_errors_are_in_the_future():
    threads, done = BackgroundThreads(1, "name"), []
    futures = [threads.submit(done.append, number) for number in range(3)]
    wrong = threads.submit(lambda: 1 / 0)
    threads.close()
    assert done == [0, 1, 2] and futures[0].result() is None
    with pytest.raises(ZeroDivisionError):
        wrong.result()
    with pytest.raises(RuntimeError):
        threads.submit(done.append, 3)


def test_at_exit_calls_run_at_once():
    program = (
        "import atexit; from composer.utils.background import BackgroundThreads\n"
        "threads = BackgroundThreads(1, 'name'); threads.submit(print, 'early')\n"
        "atexit.register(lambda: (threads.submit(print, 'late').result(), threads.close()))\n"
        "atexit.register(lambda: print(repr(threads.submit(lambda: 1 / 0).exception())))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == ["early", "ZeroDivisionError('division", "by", "zero')", "late"]
