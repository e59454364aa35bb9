"""Callbacks: plug-ins that watch training.

A few act on it, through State's own methods: ``EarlyStopper``, ``ThresholdStopper`` and
``MLPerfCallback`` stop it, ``NaNMonitor`` fails it, ``StabilityMonitor`` leaves out steps, stops or
fails it, ``FreeOutputs`` drops outputs, ``LoadCheckpoint`` loads. ``CheckpointSaver``,
``BestCheckpoints`` and ``CheckpointNow`` save it; the last also leaves the process on SIGTERM.
"""

from composer.callbacks.activation_monitor import ActivationMonitor
from composer.callbacks.best_checkpoints import BestCheckpoints
from composer.callbacks.checkpoint_now import CheckpointNow
from composer.callbacks.checkpoint_saver import CheckpointSaver
from composer.callbacks.early_stopper import EarlyStopper
from composer.callbacks.export_for_inference import ExportForInferenceCallback
from composer.callbacks.free_outputs import FreeOutputs
from composer.callbacks.generate import Generate
from composer.callbacks.image_visualizer import ImageVisualizer
from composer.callbacks.load_checkpoint import LoadCheckpoint
from composer.callbacks.lr_monitor import LRMonitor
from composer.callbacks.memory_monitor import MemoryMonitor
from composer.callbacks.memory_snapshot import MemorySnapshot
from composer.callbacks.mlperf import MLPerfCallback
from composer.callbacks.nan_monitor import NaNMonitor
from composer.callbacks.oom_observer import OOMObserver
from composer.callbacks.optimizer_monitor import OptimizerMonitor
from composer.callbacks.runtime_estimator import RuntimeEstimator
from composer.callbacks.speed_monitor import SpeedMonitor
from composer.callbacks.stability_monitor import StabilityMonitor
from composer.callbacks.system_metrics_monitor import SystemMetricsMonitor
from composer.callbacks.threshold_stopper import ThresholdStopper

__all__ = [
    "ActivationMonitor",
    "BestCheckpoints",
    "CheckpointNow",
    "CheckpointSaver",
    "EarlyStopper",
    "ExportForInferenceCallback",
    "FreeOutputs",
    "Generate",
    "ImageVisualizer",
    "LRMonitor",
    "LoadCheckpoint",
    "MLPerfCallback",
    "MemoryMonitor",
    "MemorySnapshot",
    "NaNMonitor",
    "OOMObserver",
    "OptimizerMonitor",
    "RuntimeEstimator",
    "SpeedMonitor",
    "StabilityMonitor",
    "SystemMetricsMonitor",
    "ThresholdStopper",
]
