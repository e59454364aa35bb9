import datetime
import subprocess
import sys
import time
from concurrent.futures import Future

import pytest
from torch.distributed.distributed_c10d import _set_pg_timeout

from composer.utils import dist
from composer.utils.background import BackgroundThreads, is_done_on_rank_zero, start_in_daemon
from tests.launch import run_ranks


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


def test_a_thread_that_hangs_does_not_keep_the_process():
    assert start_in_daemon("name", int, "3").result() == 3
    with pytest.raises(ValueError, match="invalid literal"):
        start_in_daemon("name", int, "x").result()
    program = (
        "import time; from composer.utils.background import start_in_daemon\n"
        "start_in_daemon('name', time.sleep, 600)\n"
    )
    subprocess.run([sys.executable, "-c", program], timeout=60, check=True)


def test_alone_it_waits_no_longer_than_the_limit():
    assert is_done_on_rank_zero(None)
    assert not is_done_on_rank_zero(Future(), 0.1)
    assert is_done_on_rank_zero(start_in_daemon("name", time.sleep, 0.1))


def _busy_for_longer_than_a_collective_may_take() -> tuple[bool, bool]:
    _set_pg_timeout(datetime.timedelta(seconds=4))
    zero = dist.get_global_rank() == 0
    slow = start_in_daemon("name", time.sleep, 6.0) if zero else None
    return is_done_on_rank_zero(slow), is_done_on_rank_zero(Future() if zero else None, 0.1)


def test_other_ranks_wait_for_as_long_as_it_takes():
    answers = run_ranks(_busy_for_longer_than_a_collective_may_take, 2)
    assert answers == [(True, False)] * 2
