"""The name of a run: given, taken from the environment, or made up."""

import os
import random
import time

from composer.utils import dist

_FIRST = (
    "amber brave brisk calm clever crimson dapper eager early fair fleet gentle golden happy "
    "honest jolly keen lively lucid mellow nimble noble placid proud quick quiet rapid rustic "
    "serene sharp silver sincere solid steady sunny swift tidy upbeat vivid warm wise witty"
).split()
_SECOND = (
    "badger beaver bison cheetah condor crane dolphin eagle falcon ferret finch fox gazelle gecko "
    "heron ibex ibis jaguar kestrel koala lemur leopard lynx marten mole moose newt ocelot orca "
    "osprey otter owl panda pelican puffin quail raven robin salmon seal shrew stork swan tapir "
    "tern tiger turtle viper vole walrus weasel wolf wombat wren yak zebra"
).split()


def given_run_name(run_name: str | None) -> str | None:
    """Returns the run's name if the user gave one: the argument, COMPOSER_RUN_NAME or RUN_NAME."""
    return run_name or os.environ.get("COMPOSER_RUN_NAME") or os.environ.get("RUN_NAME") or None


def generate_run_name() -> str:
    """Makes up a run name, ``<unix seconds>-<adjective>-<animal>``, the same on all ranks."""
    dice = random.Random(time.time_ns())  # the run's own generators must not move
    names = [f"{int(time.time())}-{dice.choice(_FIRST)}-{dice.choice(_SECOND)}"]
    dist.broadcast_object_list(names)
    return names[0]
