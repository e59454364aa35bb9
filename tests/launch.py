"""Runs a test function on several gloo processes, one a rank, and brings back their results."""

import multiprocessing
import os
import pickle
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as torch_dist
from torch.multiprocessing.spawn import start_processes

_HEAVY = (
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "peft",
    "torchmetrics",
    "transformers.modeling_utils",
    "composer.trainer.trainer",
    "llmfoundry.command_utils.train",
)
"""What takes seconds to import, and starts no thread."""


def _rank_main(
    rank: int,
    world_size: int,
    folder: str,
    environment: dict[str, str],
    fn: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        NODE_RANK="0",
        WORLD_SIZE=str(world_size),
        LOCAL_WORLD_SIZE=str(world_size),
        OMP_NUM_THREADS="1",
    )
    torch_dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world_size
    )
    result = fn(*args)
    Path(folder, f"result-{rank}.pkl").write_bytes(pickle.dumps(result))
    torch_dist.barrier()
    # Taking a gloo group apart now and then aborts the process ("terminate called without an active
    # exception"), when all that the test asked for is done.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def run_ranks(fn: Callable[..., Any], world_size: int, *args: Any) -> list[Any]:
    """Runs ``fn(*args)`` on ``world_size`` gloo ranks; returns their (picklable) results by rank.

    ``fn`` must be a module-level function. An exception on any rank fails the test with that rank's
    traceback.
    """
    # Ranks are forked from a process that has done nothing but import what this one needs, too.
    multiprocessing.set_forkserver_preload([name for name in _HEAVY if name in sys.modules])
    with tempfile.TemporaryDirectory() as folder:
        start_processes(
            _rank_main,
            args=(world_size, folder, dict(os.environ), fn, args),
            nprocs=world_size,
            start_method="forkserver",
        )
        return [
            pickle.loads(Path(folder, f"result-{rank}.pkl").read_bytes())
            for rank in range(world_size)
        ]
