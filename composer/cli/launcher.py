"""``composer``: reads the command line; the processes themselves are the elastic agent's affair.

Nothing heavy is imported until a launch is certain, so that ``composer --help`` answers at once.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from composer._version import __version__
from composer.cli.agent import launch
from composer.cli.guard import guarded
from composer.cli.options import LaunchOptions

__all__ = ["LaunchOptions", "main", "parse_args"]

_EPILOG = """\
Each process finds RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, NODE_RANK, MASTER_ADDR and
MASTER_PORT in its environment. ~ and $VARIABLES in the script's arguments are expanded with the
process's own environment, so that $RANK gives each its own.

examples:
  composer train.py --lr 1e-3                 one process per GPU, or one on a machine without
  composer -n 2 train.py                      two processes
  composer -n 8 --nnodes 2 --node_rank 1 --master_addr node0 --master_port 29500 train.py
  composer -n 8 --nnodes 1:4 --max-restarts 3 --master_addr node0 --master_port 29500 train.py
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="composer",
        usage="composer [options] script [script arguments]",
        description="Starts a program in one process per device; when one fails, all end.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--version", action="version", version=f"MosaicML Composer {__version__}")
    add(
        "-n",
        "--nproc",
        type=int,
        help="processes on this node (default: LOCAL_WORLD_SIZE, else the number of GPUs, else 1)",
    )
    add(
        "--env",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="set a variable; may be repeated",
    )
    log_help = (
        "file for the {} of each process but local rank 0, which has the terminal; may use "
        "{{rank}}, {{local_rank}}, {{world_size}}, {{local_world_size}}, {{node_rank}} (default: a "
        "temporary file, shown if the process fails)"
    )
    add("--stdout", help=log_help.format("output"))
    add("--stderr", help=log_help.format("error output"))
    add("-v", "--verbose", action="store_true", help="show what the elastic agent does")
    add("-m", "--module_mode", action="store_true", help="the script is a module: python -m script")
    add(
        "-c",
        "--command_mode",
        action="store_true",
        help="the script is a command that is no Python script",
    )
    _add_node_options(parser)
    parser.add_argument("script", help="the training program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    return parser


def _add_node_options(parser: argparse.ArgumentParser) -> None:
    nodes = parser.add_argument_group("several nodes", "Run the command on each node.")
    add = nodes.add_argument
    add(
        "--nnodes",
        metavar="N|MIN:MAX",
        help="number of nodes; with MIN:MAX, nodes may leave and come while the run goes on",
    )
    add("--world_size", type=int, help="processes on all nodes (default: WORLD_SIZE, else nproc)")
    add(
        "--base_rank",
        type=int,
        help="this node's lowest rank (default: BASE_RANK, else node_rank * nproc)",
    )
    add(
        "--node_rank",
        type=int,
        help="this node's number (default: NODE_RANK, else base_rank / nproc)",
    )
    add("--master_addr", help="address of node 0 (default: MASTER_ADDR)")
    add("--master_port", type=int, help="a free port of node 0 (default: MASTER_PORT)")
    add(
        "--join_timeout",
        "--join-timeout",
        type=int,
        default=900,
        metavar="SECONDS",
        help="how long to wait for the other nodes (default: 900)",
    )
    add = parser.add_argument_group("after a failure").add_argument
    add(
        "--max_restarts",
        "--max-restarts",
        type=int,
        metavar="N",
        help="how often this node's processes are started again (default: 0, with MIN:MAX nodes "
        "3); the program goes on from its newest checkpoint if it uses autoresume=True",
    )


def _env_int(name: str) -> int | None:
    text = os.environ.get(name, "")
    if not text:
        return None
    try:
        return int(text)
    except ValueError as error:
        raise ValueError(
            f"the environment variable {name}={text!r} must be an integer; unset or mend it"
        ) from error


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)


def _parse_env(assignments: Sequence[str]) -> dict[str, str]:
    parts = [assignment.partition("=") for assignment in assignments]
    for name, separator, value in parts:
        if not name or not separator:
            raise ValueError(f"--env {name}{separator}{value} must be written NAME=VALUE")
    return {name: value for name, _, value in parts}


def _count_devices() -> int:
    import torch  # only now: --help and mistakes must not wait for it

    return max(torch.cuda.device_count(), 1)


def _resolve_nnodes(text: str | None, nproc: int, world_size: int | None) -> tuple[int, int]:
    """Returns how many nodes the run needs, and how many may take part."""
    if nproc < 1:
        raise ValueError(f"--nproc {nproc} must be at least 1")
    if text is not None:
        low, _, high = text.partition(":")
        try:
            nodes = int(low), int(high or low)
        except ValueError:
            nodes = 0, 0
        if not 1 <= nodes[0] <= nodes[1]:
            raise ValueError(f"--nnodes {text} must be N or MIN:MAX, with 1 <= MIN <= MAX")
        if world_size is not None and (nodes[0] * nproc, nodes[1] * nproc) != (world_size,) * 2:
            raise ValueError(
                f"--world_size {world_size} must be nnodes * nproc with --nnodes {text} and "
                f"--nproc {nproc}; leave it out"
            )
        return nodes
    if world_size is None:
        return 1, 1
    if world_size < nproc:
        raise ValueError(f"--world_size {world_size} must be at least --nproc {nproc}")
    if world_size % nproc:
        raise ValueError(
            f"--world_size {world_size} must be a multiple of --nproc {nproc}: nodes are alike"
        )
    return world_size // nproc, world_size // nproc


def _resolve_node_rank(
    nproc: int, nodes: tuple[int, int], node_rank: int | None, base_rank: int | None
) -> int | None:
    """Checks how this node's processes stand among all; returns the node's rank."""
    if nodes == (1, 1):
        for name, value in (("node_rank", node_rank), ("base_rank", base_rank)):
            if value:
                raise ValueError(
                    f"--{name} {value} needs --nnodes above 1 or --world_size above nproc; one "
                    "node has number and rank 0"
                )
        return 0
    if node_rank is None and base_rank is None:
        if nodes[0] < nodes[1]:
            return None
        raise ValueError(
            f"--world_size {nodes[1] * nproc} above --nproc {nproc} needs --node_rank (or "
            "--base_rank)"
        )
    if node_rank is None:
        assert base_rank is not None
        if base_rank % nproc:
            raise ValueError(
                f"--base_rank {base_rank} must be a multiple of --nproc {nproc}, or give "
                "--node_rank"
            )
        node_rank = base_rank // nproc
    if base_rank is not None and base_rank != node_rank * nproc:
        raise ValueError(f"--base_rank {base_rank} must be node_rank * nproc = {node_rank * nproc}")
    if not 0 <= node_rank < nodes[1]:
        raise ValueError(
            f"--node_rank {node_rank} must be below the number of nodes (world_size / nproc) = "
            f"{nodes[1]}"
        )
    return node_rank


def parse_args(argv: Sequence[str] | None = None) -> LaunchOptions:
    """Reads the command line and the environment.

    Raises:
        ValueError: If they contradict themselves; the text names value, rule and cure.
    """
    args = _parser().parse_args(argv)
    if args.module_mode and args.command_mode:
        raise ValueError("--module_mode and --command_mode exclude each other; give one")
    program = [args.script] if args.command_mode else [sys.executable, args.script]
    if args.module_mode:
        program.insert(1, "-m")
    local_world_size = _env_int("LOCAL_WORLD_SIZE")
    nproc = _first(args.nproc, local_world_size)
    if nproc is None:
        nproc = _count_devices()
    # An outer launcher's WORLD_SIZE that only counts this node says no more than nproc does.
    env_world_size = _env_int("WORLD_SIZE")
    if env_world_size == local_world_size or args.nnodes is not None:
        env_world_size = None
    nodes = _resolve_nnodes(args.nnodes, nproc, _first(args.world_size, env_world_size))
    node_rank = _resolve_node_rank(
        nproc,
        nodes,
        _first(args.node_rank, _env_int("NODE_RANK")),
        _first(args.base_rank, _env_int("BASE_RANK")),
    )
    master_addr = args.master_addr or os.environ.get("MASTER_ADDR") or None
    master_port = _first(args.master_port, _env_int("MASTER_PORT"))
    if nodes[1] > 1 and (master_addr is None or master_port is None):
        raise ValueError(
            f"a run on {nodes[1]} nodes needs --master_addr and --master_port of node 0"
        )
    max_restarts = args.max_restarts
    if max_restarts is None:
        max_restarts = 3 if nodes[0] < nodes[1] else 0
    for name, value, least in (
        ("max_restarts", max_restarts, 0),
        ("join_timeout", args.join_timeout, 1),
    ):
        if value < least:
            raise ValueError(f"--{name} {value} must be at least {least}")
    return LaunchOptions(
        program=tuple(program),
        arguments=tuple(args.arguments),
        nproc=nproc,
        min_nodes=nodes[0],
        max_nodes=nodes[1],
        node_rank=node_rank,
        master_addr=master_addr,
        master_port=master_port,
        stdout=args.stdout,
        stderr=args.stderr,
        max_restarts=max_restarts,
        join_timeout=args.join_timeout,
        verbose=args.verbose,
        env=_parse_env(args.env),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the launcher and returns its exit code: that of the first process that failed, or 0."""
    try:
        options = parse_args(argv)
    except ValueError as error:
        print(f"composer: error: {error}. See composer --help.", file=sys.stderr)
        return 2
    return guarded(lambda: launch(options))


if __name__ == "__main__":
    sys.exit(main())
