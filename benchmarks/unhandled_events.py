"""Measures what events cost that nobody answers, in a run with 1,000 callbacks.

    python benchmarks/unhandled_events.py

The events of one training step are fired at an Engine whose callbacks answer none of them, and the
time is held against a step of the one-layer model of ``trainer_overhead.py``. Exits with 1 if it is
more than 1 % of it.
"""

import json
import statistics
import sys
import timeit

from trainer_overhead import (
    OneLayer,
    OneLayerComposer,
    arguments_of,
    make_loader,
    ours,
    seconds_per_step,
    sgd,
)

from composer import Callback, Event, Logger, State, Trainer

NUM_CALLBACKS = 1000
BAR = 0.01


class EventNotes(Callback):
    """Writes down all events."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def run_event(self, event: Event, state: State, logger: Logger) -> None:
        """Adds the event."""
        self.events.append(event)


def main() -> int:
    """Prints the cost of a step's events; returns 1 if it is over the bar."""
    arguments = arguments_of(__doc__)
    loader, features = make_loader(arguments), arguments.features
    step = statistics.median(
        seconds_per_step(ours, arguments, loader) for _ in range(arguments.rounds)
    )
    events = events_of_a_step(features, loader)
    engine = make_trainer(features, loader, [Callback() for _ in range(NUM_CALLBACKS)]).engine

    def fire() -> None:
        for event in events:
            engine.run_event(event)

    cost = statistics.median(timeit.repeat(fire, number=100, repeat=50)) / 100
    share = cost / step
    verdict = "within" if share <= BAR else "OVER"
    print(f"{len(events)} unheard events a step, {NUM_CALLBACKS:,} callbacks: {cost * 1e6:.1f} us")
    print(f"{share:.2%} of a step of {step * 1e6:,.0f} us: {verdict} the bar of {BAR:.0%}")
    if arguments.json is not None:
        row = {"events_seconds": cost, "step_seconds": step, "share": share, "bar": BAR}
        arguments.json.write_text(json.dumps(row) + "\n", encoding="utf-8")
    return int(share > BAR)


def make_trainer(features: int, loader: object, callbacks: list[Callback]) -> Trainer:
    """A trainer in which nobody but the callbacks hears events."""
    model = OneLayerComposer(OneLayer(features))
    return Trainer(
        model=model,
        train_dataloader=loader,
        optimizers=sgd(model),
        max_duration="2ba",
        callbacks=callbacks,
        progress_bar=False,
    )


def events_of_a_step(features: int, loader: object) -> list[Event]:
    """The events from the end of the first batch to the end of the second."""
    notes = EventNotes()
    trainer = make_trainer(features, loader, [notes])
    trainer.fit()
    trainer.close()
    first = notes.events.index(Event.BATCH_CHECKPOINT) + 1
    return notes.events[first : notes.events.index(Event.BATCH_CHECKPOINT, first) + 1]


if __name__ == "__main__":
    sys.exit(main())
