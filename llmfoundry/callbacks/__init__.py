"""Face of the callbacks: those of llmfoundry, and composer's that recipes name."""

from composer.utils.lazy import handed_on

__all__ = [
    "ActivationMonitor",
    "BestCheckpoints",
    "CheckpointNow",
    "EarlyStopper",
    "FDiffMetrics",
    "Generate",
    "GlobalLRScaling",
    "ImageVisualizer",
    "LRMonitor",
    "LayerFreezing",
    "LoadCheckpoint",
    "MemoryMonitor",
    "MemorySnapshot",
    "NaNMonitor",
    "OOMObserver",
    "OptimizerMonitor",
    "RunTimeoutCallback",
    "RuntimeEstimator",
    "ScheduledGarbageCollector",
    "SpeedMonitor",
    "StabilityMonitor",
    "SystemMetricsMonitor",
    "ThresholdStopper",
]

__getattr__ = handed_on(
    {
        "FDiffMetrics": "llmfoundry.callbacks.fdiff_callback",
        "GlobalLRScaling": "llmfoundry.callbacks.resumption_callbacks",
        "LayerFreezing": "llmfoundry.callbacks.resumption_callbacks",
        "RunTimeoutCallback": "llmfoundry.callbacks.run_timeout_callback",
        "ScheduledGarbageCollector": "llmfoundry.callbacks.scheduled_gc_callback",
        "ActivationMonitor": "composer.callbacks.activation_monitor",
        "BestCheckpoints": "composer.callbacks.best_checkpoints",
        "CheckpointNow": "composer.callbacks.checkpoint_now",
        "Generate": "composer.callbacks.generate",
        "ImageVisualizer": "composer.callbacks.image_visualizer",
        "MemorySnapshot": "composer.callbacks.memory_snapshot",
        "OOMObserver": "composer.callbacks.oom_observer",
        "StabilityMonitor": "composer.callbacks.stability_monitor",
        "SystemMetricsMonitor": "composer.callbacks.system_metrics_monitor",
        "ThresholdStopper": "composer.callbacks.threshold_stopper",
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
