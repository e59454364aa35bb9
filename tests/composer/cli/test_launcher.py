"""The launcher with real processes: what they get, how they fail, and that none is left."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from composer.cli.launcher import main, parse_args

ROOT = Path(__file__).resolve().parents[3]
LAUNCH_VARIABLES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "BASE_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
)


@pytest.fixture(autouse=True)
def _no_outer_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LAUNCH_VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return tmp_path / "program.py"


def start(*arguments: object, **kwargs: object) -> "subprocess.Popen[str]":
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-m", "composer", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
        **kwargs,  # type: ignore[call-overload]
    )


def run(*arguments: object) -> tuple[int, str, str]:
    process = start(*arguments)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def wait_for(path: Path, timeout: float = 30.0) -> str:
    deadline = time.monotonic() + timeout
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline, f"{path} never appeared"
        time.sleep(0.02)
    return path.read_text()


def gone(pids: list[int], timeout: float = 10.0) -> bool:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        alive = [pid for pid in pids if psutil.pid_exists(pid)]
        if all(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE for pid in alive):
            return True
        time.sleep(0.05)
    return False


def test_help_answers_at_once() -> None:
    run("--help")
    best = min(_timed("--help") for _ in range(3))
    assert best < 0.5, f"composer --help took {best:.2f} s: something imports torch at the top"


def _timed(*arguments: str) -> float:
    began = time.perf_counter()
    code, out, err = run(*arguments)
    assert code == 0 and "script" in out, err
    return time.perf_counter() - began


def test_version_names_the_program() -> None:
    code, out, _ = run("--version")
    assert code == 0
    assert out.startswith("MosaicML Composer ")


def test_each_process_gets_its_place_and_its_own_arguments(program: Path, tmp_path: Path) -> None:
    program.write_text(
        "import os, sys\n"
        "names = ['RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE', 'NODE_RANK', "
        "'MASTER_ADDR',\n"
        "         'PYTHONUNBUFFERED', 'TORCH_NCCL_ASYNC_ERROR_HANDLING', 'COLOUR']\n"
        "print(*[os.environ[name] for name in names], int(os.environ['MASTER_PORT']) > 0, "
        "sys.argv[1:])\n"
        "print('trouble', file=sys.stderr)\n",
    )
    logs = tmp_path / "logs"
    code, out, err = run(
        "-n", 2, "--env", "COLOUR=red", "--stdout", logs / "{rank}-of-{world_size}.txt",
        "--stderr", logs / "{local_rank}.err", program,
        "--seed=$RANK", "~", "$COLOUR", "a b", "--help",
    )  # fmt: skip
    assert code == 0, err
    home = os.path.expanduser("~")
    assert (
        out == f"0 2 0 2 0 127.0.0.1 1 1 red True ['--seed=0', {home!r}, 'red', 'a b', '--help']\n"
    )
    assert "trouble" in err
    rank_1 = (logs / "1-of-2.txt").read_text()
    assert (
        rank_1
        == f"1 2 1 2 0 127.0.0.1 1 1 red True ['--seed=1', {home!r}, 'red', 'a b', '--help']\n"
    )
    assert (logs / "1.err").read_text() == "trouble\n"


def test_processes_form_a_group(program: Path) -> None:
    program.write_text(
        "import torch\n"
        "from composer.utils import dist\n"
        "dist.initialize_dist('cpu', timeout=30)\n"
        "total = torch.tensor([float(dist.get_global_rank() + 1)])\n"
        "dist.all_reduce(total)\n"
        "print('total', total.item())\n",
    )
    code, out, err = run("-n", 2, program)
    assert (code, out) == (0, "total 3.0\n"), err


@pytest.mark.slow
def test_ranks_that_finished_do_not_abort_while_leaving(program: Path) -> None:
    program.write_text(
        "import torch\n"
        "from composer.utils import dist\n"
        "dist.initialize_dist('cpu', timeout=30)\n"
        "for _ in range(30):\n"
        "    dist.all_reduce(torch.ones(4))\n"
    )
    for _ in range(8):  # without a pause at the end, about one in three aborted
        code, _, err = run("-n", 2, program)
        assert code == 0, err


def test_module_and_command_mode(tmp_path: Path) -> None:
    code, out, err = run("-m", "-n", 1, "timeit", "-n", 1, "-r", 1, "pass")
    assert code == 0 and "loop" in out, err
    code, out, err = run("-c", "-n", 1, "echo", "rank", "$RANK")
    assert (code, out) == (0, "rank 0\n"), err
    code, _, err = run("-c", "-n", 1, str(tmp_path / "no-such-command"))
    assert code == 127
    assert "cannot run" in err


def test_failing_rank_is_shown_and_the_others_end(program: Path, tmp_path: Path) -> None:
    program.write_text(
        "import os, pathlib, subprocess, sys, time\n"
        f"folder = pathlib.Path({str(tmp_path)!r})\n"
        "rank = os.environ['RANK']\n"
        "worker = subprocess.Popen(['sleep', '300'])\n"
        "(folder / f'pids-{rank}').write_text(f'{os.getpid()} {worker.pid}')\n"
        "if rank == '1':\n"
        "    while not (folder / 'pids-0').exists(): time.sleep(0.02)\n"
        "    print('last words')\n"
        "    raise ValueError('one went wrong')\n"
        "time.sleep(300)\n",
    )
    code, _, err = run("-n", 2, program)
    assert code == 1
    assert "exited with code 1" in err and "Global rank 1 (PID " in err
    assert "Global rank 0" not in err, "a rank that the launcher ended is not a cause"
    assert (
        "----------Begin global rank 1 STDERR----------" in err
        and "ValueError: one went wrong" in err
    )
    assert "----------End global rank 1 STDOUT----------" in err and "last words" in err
    pids = [int(text) for rank in "01" for text in (tmp_path / f"pids-{rank}").read_text().split()]
    assert gone(pids), "the ranks or their workers live on"


@pytest.mark.parametrize(("ending", "code"), [("sys.exit(7)", 7), ("os.kill(os.getpid(), 9)", 137)])
def test_exit_code_is_that_of_the_first_failure(program: Path, ending: str, code: int) -> None:
    program.write_text(f"import os, sys\n{ending}\n")
    assert run("-n", 1, program)[0] == code


SLEEPER = """
import os, pathlib, signal, subprocess, time
for name in {ignored}:
    signal.signal(getattr(signal, name), signal.SIG_IGN)
worker = subprocess.Popen(["sleep", "300"], start_new_session=True)
path = pathlib.Path({folder!r}) / os.environ["RANK"]
path.with_suffix(".aside").write_text(f"{{os.getpid()}} {{worker.pid}}")
path.with_suffix(".aside").rename(path)
time.sleep(300)
"""


@pytest.fixture
def sleeping(program: Path, tmp_path: Path) -> "Iterator[tuple[subprocess.Popen[str], list[int]]]":
    program.write_text(SLEEPER.format(folder=str(tmp_path), ignored=[]))
    process = start("-n", 2, program)
    pids = [int(text) for rank in "01" for text in wait_for(tmp_path / rank).split()]
    yield process, pids
    process.kill()
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(pid).kill()
    process.communicate()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_ends_all(
    sleeping: "tuple[subprocess.Popen[str], list[int]]", number: signal.Signals, code: int
) -> None:
    process, pids = sleeping
    process.send_signal(number)
    _, err = process.communicate(timeout=20)
    assert process.returncode == code
    assert f"{number.name} received" in err
    assert gone(pids), "the ranks or their workers live on"


@pytest.mark.parametrize("which", ["the one that was started", "the one below it"])
def test_nothing_outlives_a_killed_launcher(
    sleeping: "tuple[subprocess.Popen[str], list[int]]", which: str
) -> None:
    process, pids = sleeping
    (below,) = psutil.Process(process.pid).children()
    if which == "the one below it":
        below.kill()
        _, err = process.communicate(timeout=20)
        assert process.returncode == 137
        assert "signal 9 ended the launcher" in err
    else:
        process.kill()
    assert gone([below.pid, *pids]), "ranks, or their workers, live on without a launcher"


def test_a_signal_to_the_whole_group_gives_the_ranks_time(program: Path, tmp_path: Path) -> None:
    program.write_text(
        "import pathlib, signal, sys, time\n"
        f"folder = pathlib.Path({str(tmp_path)!r})\n"
        "def end(*_):\n"
        "    time.sleep(1)\n"
        "    (folder / 'saved').write_text('in time')\n"
        "    sys.exit()\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "(folder / 'begun').write_text('.')\n"
        "time.sleep(300)\n"
    )
    process = start("-n", 1, program, start_new_session=True)
    wait_for(tmp_path / "begun")
    os.killpg(process.pid, signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 143
    assert (tmp_path / "saved").read_text() == "in time"


def test_second_interrupt_ends_the_wait(program: Path, tmp_path: Path) -> None:
    program.write_text(SLEEPER.format(folder=str(tmp_path), ignored=["SIGINT", "SIGTERM"]))
    process = start("-n", 1, program)
    pids = [int(text) for text in wait_for(tmp_path / "0").split()]
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None, "a rank is given time to end"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=10)
    assert process.returncode == 130
    assert gone(pids)


def test_two_nodes_meet(program: Path, tmp_path: Path) -> None:
    program.write_text(
        "import os\nprint(os.environ['RANK'], os.environ['NODE_RANK'], os.environ['WORLD_SIZE'])\n"
    )
    meeting = ("--master_addr", "127.0.0.1", "--master_port", free_port())
    nodes = [
        start("-n", 1, "--world_size", 2, "--node_rank", rank, *meeting, program)
        for rank in range(2)
    ]
    answers = [node.communicate(timeout=60) for node in nodes]
    assert [out for out, _ in answers] == ["0 0 2\n", "1 1 2\n"], answers


def test_a_single_node_has_the_address_that_it_is_given(program: Path) -> None:
    program.write_text("import os\nprint(os.environ['MASTER_ADDR'])\n")
    assert run("-n", 1, "--master_addr", "localhost", program)[:2] == (0, "localhost\n")


def test_options_come_from_the_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "LOCAL_WORLD_SIZE": "4",
        "WORLD_SIZE": "8",
        "BASE_RANK": "4",
        "MASTER_ADDR": "a",
        "MASTER_PORT": "29500",
    }.items():
        monkeypatch.setenv(name, value)
    options = parse_args(["train.py", "-n", "3"])
    assert (options.nproc, options.world_size, options.node_rank) == (4, 8, 1)
    assert (options.master_addr, options.master_port) == ("a", 29500)
    assert options.arguments == ("-n", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.delenv("BASE_RANK")
    assert parse_args(["-n", "2", "train.py"]).world_size == 2
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    monkeypatch.delenv("WORLD_SIZE")
    assert parse_args(["train.py"]).nproc == 1  # one per GPU, or one on a machine without


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-n", "0"], "--nproc 0 must be at least 1"),
        (["-m", "-c"], "exclude each other"),
        (["-n", "2", "--world_size", "1"], "must be at least --nproc 2"),
        (["-n", "2", "--world_size", "4"], "needs --node_rank"),
        (["--world_size", "4"], "needs --node_rank"),
        (
            ["-n", "2", "--world_size", "4", "--node_rank", "1"],
            "needs --master_addr and --master_port",
        ),
        (["-n", "2", "--world_size", "4", "--node_rank", "2"], "--node_rank 2 must be below"),
        (["-n", "2", "--world_size", "4", "--base_rank", "1"], "must be a multiple of --nproc 2"),
        (
            ["-n", "2", "--world_size", "4", "--base_rank", "2", "--node_rank", "0"],
            "must be node_rank \\* nproc",
        ),
        (["-n", "2", "--world_size", "5"], "must be a multiple"),
        (["-n", "2", "--node_rank", "1"], "needs --nnodes above 1 or --world_size above nproc"),
        (["--nnodes", "two"], "--nnodes two must be N or MIN:MAX"),
        (["--nnodes", "3:2"], "with 1 <= MIN <= MAX"),
        (["-n", "2", "--nnodes", "2", "--world_size", "8"], "must be nnodes \\* nproc"),
        (["--nnodes", "1:2"], "a run on 2 nodes needs --master_addr and --master_port"),
        (["--nnodes", "2", "--node_rank", "2"], "--node_rank 2 must be below the number of nodes"),
        (["--max-restarts", "-1"], "--max_restarts -1 must be at least 0"),
        (["--join_timeout", "0"], "--join_timeout 0 must be at least 1"),
        (["--env", "COLOUR"], "NAME=VALUE"),
    ],
)
def test_contradictions_are_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match=message):
        parse_args([*arguments, "train.py"])
    assert main([*arguments, "train.py"]) == 2
    assert "composer: error: " in capsys.readouterr().err


def test_nodes_and_restarts() -> None:
    meeting = ["--master_addr", "a", "--master_port", "29500"]
    fixed = parse_args(["-n", "2", "--nnodes", "3", "--node_rank", "1", *meeting, "train.py"])
    assert (fixed.min_nodes, fixed.max_nodes, fixed.world_size, fixed.node_rank) == (3, 3, 6, 1)
    assert fixed.max_restarts == 0
    elastic = parse_args(["-n", "2", "--nnodes", "1:4", *meeting, "train.py"])
    assert (elastic.min_nodes, elastic.max_nodes, elastic.node_rank) == (1, 4, None)
    assert elastic.max_restarts == 3
    assert parse_args(["--nnodes", "1:4", "--max_restarts", "0", *meeting, "x"]).max_restarts == 0


RESTARTED = """
import os, signal, subprocess
from composer.utils import dist
import torch
dist.initialize_dist("cpu", timeout=30)
total = torch.ones(1)
dist.all_reduce(total)
first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
if dist.get_global_rank() == 1 and first:
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    worker = subprocess.Popen(["sleep", "300"], start_new_session=True, **quiet)
    print("worker", worker.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
dist.barrier()
print("done" if not first else "first", total.item())
"""


def test_a_lost_rank_restarts_all(program: Path) -> None:
    program.write_text(RESTARTED)
    code, out, err = run("-n", 2, "--max-restarts", 1, program)
    assert (code, out) == (0, "done 2.0\n"), err
    assert "exited with code -9" in err and "restart 1 of 1" in err
    worker = next(line.split()[1] for line in err.splitlines() if line.startswith("worker "))
    assert gone([int(worker)]), "a worker of the first try lives on"


@pytest.mark.slow
def test_a_plain_torchrun_restarts_too(program: Path) -> None:
    program.write_text(RESTARTED)
    process = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
         "--max-restarts", "1", str(program)],
        capture_output=True, text=True, timeout=90, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    assert process.stdout.count("done") == process.stdout.count("2.0") == 2
    worker = int(process.stdout.split("worker ")[1].split()[0])
    psutil.Process(worker).kill()  # torchrun leaves it


def test_a_node_that_waits_in_vain_says_for_what(program: Path) -> None:
    program.write_text("")
    nodes = ["-n", 1, "--nnodes", 2, "--node_rank", 0, "--join_timeout", 2]
    nodes += ["--master_addr", "127.0.0.1", "--master_port", free_port()]
    for more in ([], ["--max-restarts", 1]):
        code, _, err = run(*nodes, *more, program)
        assert code == 1
        assert "waiting for 2 nodes at 127.0.0.1:" in err and "failed after 2 s" in err, err


def test_an_unknown_address_is_named(program: Path) -> None:
    program.write_text("")
    nodes = ["-n", 1, "--nnodes", 2, "--node_rank", 1, "--join_timeout", 2]
    code, _, err = run(*nodes, "--master_addr", "absent.invalid", "--master_port", 1, program)
    assert code == 1
    assert "no way leads to absent.invalid" in err, err


def test_a_variable_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_PORT", "none")
    with pytest.raises(ValueError, match="MASTER_PORT='none' must be an integer"):
        parse_args(["train.py"])
