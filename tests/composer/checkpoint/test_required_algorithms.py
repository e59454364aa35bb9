"""Algorithms that a checkpoint's weights need, replayed from text that is parsed and never run."""

from pathlib import Path

import pytest

from composer.checkpoint.monolithic import safe_torch_load, write_checkpoint_file
from composer.checkpoint.required_algorithms import parse_algorithm
from composer.checkpoint.whole_run import load_checkpoint, save_checkpoint
from composer.core.algorithm import Algorithm
from composer.core.logger import Logger
from composer.core.passes import DEFAULT_PASSES
from tests.composer.checkpoint.runs import Harmless, Widen, WidenFirst, make_state


def save(tmp_path: Path, *algorithms: Algorithm) -> str:
    path = save_checkpoint(make_state(*algorithms, steps=1), str(tmp_path / "x.pt"))
    assert path is not None
    return path


def test_text_is_parsed() -> None:
    parsed = parse_algorithm("Widen(width=-5,name='x')")
    assert isinstance(parsed, Widen)
    assert (parsed.width, parsed.name) == (-5, "x")
    assert repr(parse_algorithm("Widen(7)")) == "Widen(width=7,name='extra')"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("__import__('os').system('true')", "not of the form"),
        ("Widen(width=__import__('os').system('true'))", "not a literal"),
        ("Widen(**{'width': 1})", "unpacks"),
        ("Widen(*[1])", "not a literal"),
        ("exec('1')", "no algorithm 'exec'"),
        ("Path('x')", "no algorithm 'Path'"),
        ("Widen", "not of the form"),
        ("Widen(", "not Python"),
        ("Widen(width=Wide.RANGE)", "not a literal"),
        ("", "not Python"),
    ],
)
def test_anything_but_a_plain_call_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_algorithm(text)


@pytest.mark.parametrize("weights_only", [True, False])
def test_a_missing_one_is_added_and_applied(tmp_path: Path, weights_only: bool) -> None:
    path = save(tmp_path, Widen(5), Harmless())
    state = make_state()
    with pytest.warns(UserWarning, match="Automatically adding required_on_load algorithm Widen"):
        load_checkpoint(
            path,
            state,
            Logger(state),
            load_weights_only=weights_only,
            ignore_keys=["state/optimizers"],
            algorithm_passes=DEFAULT_PASSES,
        )
    assert [repr(algorithm) for algorithm in state.algorithms] == ["Widen(width=5,name='extra')"]
    assert state.model.extra.weight.shape == (5, 2)


def test_one_that_is_there_is_left_alone(tmp_path: Path) -> None:
    path = save(tmp_path, Widen(5))
    state = make_state(Widen(5))
    load_checkpoint(path, state, Logger(state))
    assert len(state.algorithms) == 1


def test_one_that_is_there_with_other_arguments_is_warned_about(tmp_path: Path) -> None:
    path = save(tmp_path, Widen(5, "a"))
    state = make_state(Widen(5, "b"))
    with (
        pytest.warns(UserWarning, match="required_on_load algorithm Widen.width=5,name='a'"),
        pytest.raises(RuntimeError, match="a.weight"),
    ):
        load_checkpoint(path, state, Logger(state))


def test_an_excluded_one_is_not_added(tmp_path: Path) -> None:
    path = save(tmp_path, Widen(5))
    state = make_state()
    with pytest.raises(RuntimeError, match="extra.weight"):
        load_checkpoint(path, state, Logger(state), exclude_algorithms=["Widen"])
    assert not state.algorithms


def test_one_that_cannot_be_built_is_warned_about(tmp_path: Path) -> None:
    path = save(tmp_path, Widen(5))
    content = safe_torch_load(path)
    content["state"]["algorithms"] = [("Widen", {"repr": "Widen(width=print('hurt'))"})]
    write_checkpoint_file(content, path)
    state = make_state()
    with (
        pytest.warns(
            UserWarning, match="required_on_load algorithm Widen .* cannot be built again"
        ),
        pytest.raises(RuntimeError, match="extra.weight"),
    ):
        load_checkpoint(path, state, Logger(state))


def test_one_that_fails_is_an_error(tmp_path: Path) -> None:
    path = save(tmp_path, Widen(5))
    content = safe_torch_load(path)
    content["state"]["algorithms"] = [("Widen", {"repr": "Widen(width=-1)"})]
    write_checkpoint_file(content, path)
    state = make_state()
    with (
        pytest.warns(UserWarning, match="Automatically adding"),
        pytest.raises(ValueError, match="could not be applied to this model: no negative widths"),
    ):
        load_checkpoint(path, state, Logger(state))


def test_one_that_comes_too_late_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path, WidenFirst(5, "first"), Widen(5))
    state = make_state(Widen(5))
    with pytest.raises(ValueError, match="must run before algorithms"):
        load_checkpoint(path, state, Logger(state), algorithm_passes=DEFAULT_PASSES)


def test_strangers_in_the_list_are_passed_over(tmp_path: Path) -> None:
    path = save(tmp_path)
    content = safe_torch_load(path)
    content["state"]["algorithms"] = [("NoSuchAlgorithm", {"repr": "x"}), ("sys", {})]
    write_checkpoint_file(content, path)
    state = make_state()
    load_checkpoint(path, state, Logger(state))
    assert not state.algorithms
