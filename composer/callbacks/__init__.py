"""Callbacks: plug-ins that watch training.

A few act on it, through State's own methods: ``EarlyStopper`` and ``ThresholdStopper`` stop it,
``NaNMonitor`` fails it, ``FreeOutputs`` drops outputs, ``LoadCheckpoint`` loads.
"""

from composer.callbacks.checkpoint_saver import CheckpointSaver
from composer.callbacks.early_stopper import EarlyStopper
from composer.callbacks.free_outputs import FreeOutputs
from composer.callbacks.load_checkpoint import LoadCheckpoint
from composer.callbacks.lr_monitor import LRMonitor
from composer.callbacks.memory_monitor import MemoryMonitor
from composer.callbacks.nan_monitor import NaNMonitor
from composer.callbacks.optimizer_monitor import OptimizerMonitor
from composer.callbacks.runtime_estimator import RuntimeEstimator
from composer.callbacks.speed_monitor import SpeedMonitor
from composer.callbacks.threshold_stopper import ThresholdStopper

__all__ = [
    "CheckpointSaver",
    "EarlyStopper",
    "FreeOutputs",
    "LRMonitor",
    "LoadCheckpoint",
    "MemoryMonitor",
    "NaNMonitor",
    "OptimizerMonitor",
    "RuntimeEstimator",
    "SpeedMonitor",
    "ThresholdStopper",
]
