"""Where this process stands: node, rank and loader worker."""

from dataclasses import dataclass, replace

from torch.utils.data import get_worker_info

from streaming.base.distributed import get_local_world_size, get_rank, get_world_size


@dataclass(frozen=True)
class World:
    """The grid of nodes, ranks and workers, and this process's place in it.

    Args:
        num_nodes: Number of nodes.
        ranks_per_node: Ranks on each node.
        workers_per_rank: Loader workers of each rank (1 if the rank loads by itself).
        worker: Number of this worker among all workers of all ranks.
    """

    num_nodes: int
    ranks_per_node: int
    workers_per_rank: int
    worker: int

    def __post_init__(self) -> None:
        total = self.num_nodes * self.ranks_per_node * self.workers_per_rank
        if not 0 <= self.worker < total:
            raise ValueError(
                f"worker {self.worker} is not one of the {total} workers of the world."
            )

    @classmethod
    def detect(cls) -> "World":
        """The world from the environment, and from torch inside a loader worker."""
        world_size, local_world_size = get_world_size(), get_local_world_size()
        if world_size % local_world_size:
            raise ValueError(
                f"WORLD_SIZE ({world_size}) is not a multiple of LOCAL_WORLD_SIZE "
                f"({local_world_size})."
            )
        alone = cls(world_size // local_world_size, local_world_size, 1, get_rank())
        return alone.detect_workers()

    def detect_workers(self) -> "World":
        """This world as seen from the loader worker that asks (or from the rank itself)."""
        info = get_worker_info()
        workers, worker = (info.num_workers, info.id) if info else (1, 0)
        return replace(self, workers_per_rank=workers, worker=self.rank * workers + worker)

    def copy(self) -> "World":
        """An equal world."""
        return replace(self)

    def replicate(self, replication: int) -> "World":
        """The world in which each ``replication`` consecutive ranks count as one."""
        if replication <= 0:
            raise ValueError(f"Replication factor must be positive. Got {replication}.")
        if self.num_ranks % replication:
            raise ValueError(
                f"World size must be divisible by your replication factor. {self.num_ranks} ranks "
                f"do not divide by {replication}."
            )
        ranks, rank = self.num_ranks // replication, self.rank // replication
        nodes = ranks // self.ranks_per_node if ranks % self.ranks_per_node == 0 else 1
        worker = rank * self.workers_per_rank + self.worker_of_rank
        return World(nodes, ranks // nodes, self.workers_per_rank, worker)

    def to_json(self) -> dict[str, int | bool]:
        """All facts, for logs."""
        names = (
            "node num_nodes is_multinode rank num_ranks rank_of_node ranks_per_node worker "
            "num_workers worker_of_node workers_per_node worker_of_rank workers_per_rank is_leader "
            "is_local_leader"
        )
        return {name: getattr(self, name) for name in names.split()}

    @property
    def num_ranks(self) -> int:
        """Ranks on all nodes."""
        return self.num_nodes * self.ranks_per_node

    @property
    def num_workers(self) -> int:
        """Workers of all ranks."""
        return self.num_ranks * self.workers_per_rank

    @property
    def workers_per_node(self) -> int:
        """Workers of the ranks of one node."""
        return self.ranks_per_node * self.workers_per_rank

    @property
    def node(self) -> int:
        """Number of this node."""
        return self.worker // self.workers_per_node

    @property
    def is_multinode(self) -> bool:
        """Whether there is more than one node."""
        return self.num_nodes > 1

    @property
    def rank(self) -> int:
        """Number of this rank among all."""
        return self.worker // self.workers_per_rank

    @property
    def rank_of_node(self) -> int:
        """Number of this rank on its node."""
        return self.rank % self.ranks_per_node

    @property
    def worker_of_node(self) -> int:
        """Number of this worker on its node."""
        return self.worker % self.workers_per_node

    @property
    def worker_of_rank(self) -> int:
        """Number of this worker on its rank."""
        return self.worker % self.workers_per_rank

    @property
    def is_leader(self) -> bool:
        """Whether this is the first worker of all."""
        return self.worker == 0

    @property
    def is_local_leader(self) -> bool:
        """Whether this is the first worker of its node."""
        return self.worker_of_node == 0
