"""The core of training: events, time, state, the engine, and the interfaces of plug-ins."""

from composer.core.algorithm import Algorithm
from composer.core.callback import Callback
from composer.core.data_spec import DataSpec, ensure_data_spec
from composer.core.duration import Time, ensure_time
from composer.core.engine import Engine, Trace
from composer.core.evaluator import Evaluator, ensure_evaluator
from composer.core.event import Event
from composer.core.passes import AlgorithmPass
from composer.core.precision import Precision, get_precision_context
from composer.core.serializable import Serializable
from composer.core.state import State
from composer.core.time_unit import TimeUnit
from composer.core.timestamp import Timestamp
from composer.core.types import JSON, Batch, Dataset, MemoryFormat, TrainerMode

__all__ = [
    "JSON",
    "Algorithm",
    "AlgorithmPass",
    "Batch",
    "Callback",
    "DataSpec",
    "Dataset",
    "Engine",
    "Evaluator",
    "Event",
    "MemoryFormat",
    "Precision",
    "Serializable",
    "State",
    "Time",
    "TimeUnit",
    "Timestamp",
    "Trace",
    "TrainerMode",
    "ensure_data_spec",
    "ensure_evaluator",
    "ensure_time",
    "get_precision_context",
]
