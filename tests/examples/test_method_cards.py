"""Every method has a card, and what a card says of arguments, events and recipes is so."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from composer import Algorithm, Event, algorithms, optim
from composer.callbacks import StabilityMonitor
from llmfoundry import registry
from llmfoundry.builders import build_algorithm, build_callback, build_optimizer, build_scheduler
from llmfoundry.models import ComposerMPTCausalLM
from llmfoundry.optim import DecoupledLionW

CARDS = Path(__file__).resolve().parents[2] / "docs" / "methods"
HEADINGS = ["Use", "Arguments", "Settings", "Cost", "When not", "Source", "Measured"]
FIRST_TABLE = ["kind of model", "acts at (events)", "changes", "required on load"]
PLACE = re.compile(r"<!-- measured: [\w -]+ -->\n.+\n<!-- end -->\n", re.DOTALL)
YAML = re.compile(r"^```yaml\n(.*?)^```$", re.DOTALL | re.MULTILINE)
EVENTS = {event.value for event in Event}


def algorithm_classes() -> list[type[Algorithm]]:
    found = [getattr(algorithms, name) for name in algorithms.__all__]
    return [kind for kind in found if inspect.isclass(kind) and issubclass(kind, Algorithm)]


def card_of(kind: type[Algorithm]) -> str:
    """The card is called as the folder that the class lives in."""
    return (CARDS / f"{kind.__module__.split('.')[2]}.md").read_text("utf-8")


def section(card: str, heading: str) -> str:
    return card.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def table(text: str) -> list[list[str]]:
    """The cells of the first table of a text."""
    found = re.search(r"(^\|.*\n)+", text, re.MULTILINE)
    lines = found[0].splitlines() if found else []
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def written(parameter: inspect.Parameter) -> str:
    value: Any = parameter.default
    if value is parameter.empty:
        return "required"
    return f"`{value}`" if isinstance(value, Event) else f"`{value!r}`"


def check_arguments(card: str, kind: type) -> None:
    text = section(card, "Arguments").partition(f"`{kind.__name__}`")[2]
    said = {row[0]: row[1] for row in table(text)[2:]}
    parameters = inspect.signature(kind).parameters
    assert said == {f"`{name}`": written(each) for name, each in parameters.items()}


KINDS = pytest.mark.parametrize("kind", algorithm_classes(), ids=lambda kind: kind.__name__)


@pytest.mark.parametrize("path", sorted(CARDS.glob("[!R]*.md")), ids=lambda path: path.stem)
def test_cards_are_built_alike(path: Path) -> None:
    card = path.read_text("utf-8")
    assert card.startswith("# ")
    assert re.findall(r"^## (.*)$", card, re.MULTILINE) == HEADINGS
    assert table(card)[0] == FIRST_TABLE
    measured = section(card, "Measured")
    assert PLACE.search(measured) or ("<!--" not in measured and "no row" in measured)


@KINDS
def test_a_card_names_the_class_its_arguments_and_defaults(kind: type[Algorithm]) -> None:
    card = card_of(kind)
    assert kind.__name__ in section(card, "Use")
    check_arguments(card, kind)


@KINDS
def test_a_card_says_when_it_acts_and_whether_loading_needs_it(kind: type[Algorithm]) -> None:
    _, events, _, on_load = table(card_of(kind))[2]
    named = set(re.findall(r"`(\w+)`", events))
    assert named & EVENTS
    comes_with_an_optimizer = kind.__name__ in named  # then the row is the optimizer's
    # The other names are settings, which change the events.
    assert named - EVENTS - {kind.__name__} <= set(inspect.signature(kind).parameters)
    is_needed = "yes" if kind.required_on_load() else "no"
    assert comes_with_an_optimizer or on_load.split()[0] == is_needed


@KINDS
def test_the_recipe_on_a_card_builds_the_class(kind: type[Algorithm]) -> None:
    recipes = [yaml.safe_load(text) for text in YAML.findall(card_of(kind))]
    rows = [row for recipe in recipes for row in recipe.get("algorithms", {}).items()]
    built = {type(build_algorithm(name, arguments)) for name, arguments in rows}
    in_registry = kind in {registry.algorithms.get(name) for name in registry.algorithms.get_all()}
    assert (kind in built) == in_registry


OTHERS = {
    "ademamix": optim.DecoupledAdEMAMix,
    "lion": DecoupledLionW,
    "muon": optim.DecoupledMuon,
    "schedule_free": optim.ScheduleFreeAdamW,
    "skip_step": StabilityMonitor,
    "wsd": optim.WarmupStableDecayScheduler,
}


@pytest.mark.parametrize("name", OTHERS)
def test_so_do_the_cards_of_what_is_no_algorithm(name: str) -> None:
    card = (CARDS / f"{name}.md").read_text("utf-8")
    assert OTHERS[name].__name__ in section(card, "Use")
    check_arguments(card, OTHERS[name])


@pytest.mark.parametrize("path", sorted(CARDS.glob("[!R]*.md")), ids=lambda path: path.stem)
def test_the_other_sections_of_recipes_build(path: Path) -> None:
    for recipe in map(yaml.safe_load, YAML.findall(path.read_text("utf-8"))):
        given = dict(recipe.pop("model", {}))
        given.setdefault("name", "mpt_causal_lm")
        tiny = {"d_model": 16, "n_heads": 2, "n_layers": 1, "max_seq_len": 16, "vocab_size": 64}
        assert given.pop("name") == "mpt_causal_lm"
        model = ComposerMPTCausalLM(**{**tiny, **given}, use_train_metrics=False)
        if optimizer := dict(recipe.pop("optimizer", {})):
            build_optimizer(model, optimizer.pop("name"), optimizer)
        if scheduler := dict(recipe.pop("scheduler", {})):
            build_scheduler(scheduler.pop("name"), scheduler)
        for name, arguments in recipe.pop("callbacks", {}).items():
            build_callback(name, arguments)
        assert recipe.keys() <= {"algorithms", "compile_config"}


def test_a_default_that_is_not_so_is_found() -> None:
    card = card_of(algorithms.EMA)
    with pytest.raises(AssertionError):
        check_arguments(card.replace("'1000ba'", "'100ba'"), algorithms.EMA)
