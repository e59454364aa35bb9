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
    min_nodes: int
    """Nodes without which the run does not start, or go on."""
    max_nodes: int
    """Nodes that may take part."""
    node_rank: int | None
    """The number of this node; None to be given one when the nodes meet."""
    master_addr: str | None
    """Where node 0 is reached; None on a single node."""
    master_port: int | None
    """The port that node 0 listens on; None to choose a free one on a single node."""
    stdout: str | None
    """Template of the files that take the standard output of all but local rank 0."""
    stderr: str | None
    """Template of the files that take the error output of all but local rank 0."""
    max_restarts: int = 0
    """How often this node's processes are started anew after a failure."""
    join_timeout: int = 900
    """Seconds to wait for the other nodes."""
    verbose: bool = False
    """Whether to show what the elastic agent does."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables to add to the processes' environment."""

    @property
    def world_size(self) -> int:
        """Processes in all, at most."""
        return self.nproc * self.max_nodes
