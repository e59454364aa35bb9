"""What can be kept in a checkpoint."""

from __future__ import annotations

from typing import Any


class Serializable:
    """Has a state that is saved with a checkpoint and loaded from it; none by default."""

    def state_dict(self) -> dict[str, Any]:
        """Returns what the checkpoint must keep of this object."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes back what `state_dict` returned.

        Args:
            state: As it was saved, possibly by an older version.
        """
        del state
