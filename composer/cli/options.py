"""What a launch was asked to do: read by the launcher, done by the agent."""

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["LaunchOptions"]


@dataclass(frozen=True)
class LaunchOptions:
    """What to start, how often, and where the output goes."""

    program: tuple[str, ...]
    """The command up to the script's arguments."""
    arguments: tuple[str, ...]
    """The script's arguments, not yet expanded."""
    nproc: int
    """Processes on this node."""
    world_size: int
    """Processes in all."""
    node_rank: int
    """The number of this node."""
    master_addr: str | None
    """Where node 0 is reached; None on a single node."""
    master_port: int | None
    """The port that node 0 listens on; None to choose a free one on a single node."""
    stdout: str | None
    """Template of the files that take the standard output of all but local rank 0."""
    stderr: str | None
    """Template of the files that take the error output of all but local rank 0."""
    verbose: bool = False
    """Whether to show what the elastic agent does."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables to add to the processes' environment."""
