"""Face of the callbacks: those of llmfoundry, and composer's that recipes name."""

from composer.utils.lazy import handed_on

__all__ = [
    "EarlyStopper",
    "FDiffMetrics",
    "GlobalLRScaling",
    "LRMonitor",
    "LayerFreezing",
    "LoadCheckpoint",
    "MemoryMonitor",
    "NaNMonitor",
    "OptimizerMonitor",
    "RunTimeoutCallback",
    "RuntimeEstimator",
    "ScheduledGarbageCollector",
    "SpeedMonitor",
]

__getattr__ = handed_on(
    {
        "FDiffMetrics": "llmfoundry.callbacks.fdiff_callback",
        "GlobalLRScaling": "llmfoundry.callbacks.resumption_callbacks",
        "LayerFreezing": "llmfoundry.callbacks.resumption_callbacks",
        "RunTimeoutCallback": "llmfoundry.callbacks.run_timeout_callback",
        "ScheduledGarbageCollector": "llmfoundry.callbacks.scheduled_gc_callback",
        "EarlyStopper": "composer.callbacks.early_stopper",
        "LRMonitor": "composer.callbacks.lr_monitor",
        "LoadCheckpoint": "composer.callbacks.load_checkpoint",
        "MemoryMonitor": "composer.callbacks.memory_monitor",
        "NaNMonitor": "composer.callbacks.nan_monitor",
        "OptimizerMonitor": "composer.callbacks.optimizer_monitor",
        "RuntimeEstimator": "composer.callbacks.runtime_estimator",
        "SpeedMonitor": "composer.callbacks.speed_monitor",
    }
)
