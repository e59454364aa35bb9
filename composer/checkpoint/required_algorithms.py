"""What has to be done to a model again before saved weights fit it.

Some algorithms change the model's parts (factorised layers, say). A checkpoint tells them by their
text, ``Name(key=value, ...)``. The text is parsed, never evaluated: the name is looked up among the
known algorithms, and the values must be Python literals or events, as in ``Event.INIT``.
"""

import ast
import importlib
import logging
import warnings
from collections.abc import Sequence
from typing import Any

from composer.core.algorithm import Algorithm, algorithm_class
from composer.core.event import Event
from composer.core.logger import Logger
from composer.core.passes import AlgorithmPass
from composer.core.state import State

__all__ = ["apply_required_algorithms", "parse_algorithm"]

log = logging.getLogger(__name__)

# Where an algorithm of ours is found that the program itself has not imported.
_FACE = "composer.algorithms"


def _class_of(name: str) -> type[Algorithm] | None:
    """Returns the algorithm class of a name; nothing but names of algorithms is ever looked up."""
    known = algorithm_class(name)
    if known is None and name.isidentifier():
        try:
            known = getattr(importlib.import_module(_FACE), name, None)
        except ImportError:  # of a release that had it, or it needs a package that is not installed
            return None
    return known if isinstance(known, type) and issubclass(known, Algorithm) else None


def parse_algorithm(text: str) -> Algorithm:
    """Builds an algorithm from its saved text without evaluating it.

    Args:
        text: A call with literals only, such as ``BlurPool(replace_convs=True)``.

    Raises:
        ValueError: If the text is anything else, or names no algorithm.
    """
    try:
        call = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"{text!r} is not Python") from error
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise ValueError(f"{text!r} is not of the form Name(key=value, ...)")
    kind = _class_of(call.func.id)
    if kind is None:
        raise ValueError(f"there is no algorithm {call.func.id!r}")
    try:
        positional = [_value_of(node) for node in call.args]
        named = {node.arg: _value_of(node.value) for node in call.keywords if node.arg is not None}
    except ValueError as error:
        raise ValueError(f"an argument of {text!r} is not a literal") from error
    if len(named) != len(call.keywords):
        raise ValueError(f"{text!r} unpacks a dictionary")
    return kind(*positional, **named)


def _value_of(node: ast.expr) -> Any:
    """Returns the value of a literal, or the event that is named."""
    match node:
        case ast.Attribute(ast.Name("Event"), name) if name in Event.__members__:
            return Event[name]
    return ast.literal_eval(node)


def _missing_ones(
    state: State, saved: Sequence[tuple[str, dict[str, Any]]], excluded: Sequence[str]
) -> list[Algorithm]:
    present = {type(algorithm).__qualname__: repr(algorithm) for algorithm in state.algorithms}
    missing: list[Algorithm] = []
    for name, saved_state in saved:
        kind = None if name in excluded else _class_of(name)
        if kind is None or not kind.required_on_load():
            continue
        text = saved_state.get("repr", "")
        if name not in present:
            try:
                missing.append(parse_algorithm(text))
            except (TypeError, ValueError) as error:
                warnings.warn(
                    f"required_on_load algorithm {name} was enabled when the checkpoint was saved, "
                    f"but it cannot be built again from {text!r}: {error}. If the weights do not "
                    "fit, pass it in algorithms=[...].",
                    stacklevel=4,
                )
        elif text != present[name]:
            warnings.warn(
                f"required_on_load algorithm {text} was enabled when the checkpoint was saved, but "
                f"this run has {present[name]}, which may change the model in another way.",
                stacklevel=4,
            )
    return missing


def _check_order(
    state: State, missing: Sequence[Algorithm], passes: Sequence[AlgorithmPass]
) -> None:
    """Refuses if an algorithm to be added would have to run before one that has already run."""
    applied = [algorithm for algorithm in state.algorithms if algorithm.match(Event.INIT, state)]
    ordered: Sequence[Algorithm] = [*applied, *missing]
    for algorithm_pass in passes:
        ordered = algorithm_pass(ordered, Event.INIT)
    to_come = [algorithm for algorithm in ordered if algorithm in missing or algorithm in applied][
        : len(applied)
    ]
    early = [str(algorithm) for algorithm in to_come if algorithm in missing]
    if early:
        raise ValueError(
            f"The checkpoint needs {', '.join(early)}, which must run before algorithms that this "
            "run has already applied to the model. Pass all of them in algorithms=[...], or leave "
            "them out with load_exclude_algorithms.",
        )


def apply_required_algorithms(
    state: State,
    logger: Logger,
    state_dict: dict[str, Any],
    exclude_algorithms: Sequence[str] | None = None,
    algorithm_passes: Sequence[AlgorithmPass] | None = None,
) -> None:
    """Adds to the run, and applies to the model, the algorithms that a checkpoint's weights need.

    Args:
        state: The run's State; what is added is appended to ``state.algorithms``.
        logger: The run's Logger.
        state_dict: A checkpoint's ``state`` part.
        exclude_algorithms: Names of algorithms not to add.
        algorithm_passes: The engine's passes, which say in which order algorithms run.

    Raises:
        ValueError: If one must run before an algorithm that has been applied, or fails, or the
            model is sharded already.
    """
    saved = state_dict.get("algorithms")
    if not isinstance(saved, list):  # other layouts belong to releases that replayed nothing
        return
    missing = _missing_ones(state, saved, exclude_algorithms or ())
    if not missing:
        return
    _check_order(state, missing, algorithm_passes or ())
    for algorithm in missing:
        warnings.warn(
            f"Automatically adding required_on_load algorithm {algorithm}, which was enabled when "
            "the checkpoint was saved and changes the model. Leave it out with "
            "load_exclude_algorithms.",
            stacklevel=3,
        )
        changes_model = algorithm.match(Event.INIT, state)
        if changes_model and state.fsdp_enabled:
            raise ValueError(
                f"The checkpoint needs {algorithm}, which changes the model, and the model is "
                "spread over the ranks already: pass it in algorithms=[...], so that it is applied "
                "before, or leave it out with load_exclude_algorithms."
            )
        state.algorithms.append(algorithm)
        try:
            if changes_model:
                algorithm.apply(Event.INIT, state, logger)
        except Exception as error:
            raise ValueError(
                f"required_on_load algorithm {algorithm} of the checkpoint could not be applied to "
                f"this model: {error}. Give the run the model of the checkpoint, or leave it out "
                "with load_exclude_algorithms.",
            ) from error
