"""Everything that is wrong with a recipe, gathered first and reported at once."""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field

__all__ = ["ConfigError", "Problems", "RecipeNotFoundError", "suggestion"]


class ConfigError(ValueError):
    """A recipe that cannot run; the text lists all that is wrong with it."""


class RecipeNotFoundError(ConfigError, FileNotFoundError):
    """A recipe that is not where it was said to be."""


def suggestion(name: str, known: Iterable[str]) -> str:
    """Says which known name was probably meant, or which names there are."""
    names = sorted(known)
    # Cut-off 0.6: catches swapped, missing and doubled letters without far-fetched guesses.
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if near:
        return f"Did you mean {near[0]!r}?"
    if not names:
        return "This section takes no keys."
    return f"Known: {', '.join(names)}."


@dataclass
class Problems:
    """A list of faults that becomes one error."""

    unknown: dict[str, str] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)

    def add(self, path: str, text: str) -> None:
        """Notes a fault of the setting at ``path``."""
        self.others.append(f"{path}: {text}" if path else text)

    def add_unknown(self, path: str, known: Iterable[str]) -> None:
        """Notes a key that nobody reads."""
        self.unknown[path] = suggestion(path.rsplit(".", 1)[-1], known)

    def raise_if_any(self) -> None:
        """Raises one error for all faults noted so far."""
        if not self.unknown and not self.others:
            return
        lines = []
        if self.unknown:
            lines.append(
                f"Unused parameters {sorted(self.unknown)} found in cfg. Nothing reads them, so "
                "they would have no effect. Please correct or remove them; what only serves "
                "interpolation belongs below the `variables` key."
            )
            lines += [f"  - {path}: unknown key. {hint}" for path, hint in self.unknown.items()]
        if self.others:
            lines.append("These settings cannot be used as they are:")
            lines += [f"  - {text}" for text in self.others]
        raise ConfigError("\n".join(lines))
