"""Which columns of a table's rows a user wants, and under which names."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


class Columns:
    """Chooses columns, all if the user does not say.

    Args:
        wanted: Their names, or a mapping from the name in the sample to the one in the file.
    """

    def __init__(self, wanted: Mapping[str, str] | Sequence[str] | None) -> None:
        if isinstance(wanted, str) or (wanted is not None and not wanted):
            raise ValueError(
                f"`columns` must be a list of names, or a mapping from names in the sample to "
                f"names in the file, but got {wanted!r}."
            )
        self._sources: dict[str, str] | None = None
        if wanted is not None:
            self._sources = dict(
                wanted if isinstance(wanted, Mapping) else {name: name for name in wanted}
            )

    def check(self, present: Iterable[str], where: str) -> None:
        """Refuses a column that is not there.

        Raises:
            ValueError: It names those that are.
        """
        for name in self.sources(present).values():
            if name not in present:
                raise ValueError(
                    f"{where} has no column {name!r}; it has {sorted(present)}. Name one of them "
                    "in `columns`, as a list or as {name in the sample: name in the file}."
                )

    def keep(self, names: Iterable[str], present: Iterable[str], where: str) -> None:
        """Keeps only those of these columns that are there, which must be one at least."""
        sources = self.sources(present)
        kept = {name: sources[name] for name in names if name in sources}
        if not kept:
            raise ValueError(
                f"{where} has no column {' or '.join(names)}; it has {sorted(sources)}. Say which "
                "one it is, for example `columns: {text: "
                + (sorted(sources) or ["body"])[0]
                + "}`."
            )
        self._sources = kept

    def sources(self, present: Iterable[str]) -> dict[str, str]:
        """The name in the file by the name in the sample."""
        return {name: name for name in present} if self._sources is None else self._sources

    def encodings(self, present: Mapping[str, str]) -> dict[str, str]:
        """How each column of a sample is written, from how those of the file are."""
        return {name: present[source] for name, source in self.sources(present).items()}

    def source(self, name: str) -> str:
        """The name in the file of a name in the sample."""
        return name if self._sources is None else self._sources[name]

    def missing(self, row: Mapping[str, Any]) -> str | None:
        """A column that the row lacks, if any."""
        return next((name for name in self.sources(()).values() if name not in row), None)

    def __repr__(self) -> str:
        return f"Columns({self._sources})"

    def select(self, row: dict[str, Any]) -> dict[str, Any]:
        """The sample of a row."""
        if self._sources is None:
            return row
        return {name: row[source] for name, source in self._sources.items()}
