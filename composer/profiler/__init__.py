"""The profiler: spans of training, counters of the machine and torch's own traces, as JSON files.

Names are imported at first use, so that ``python -m composer.profiler.json_trace_merger`` starts
light and once.
"""

from composer.utils.lazy import handed_on

__all__ = [
    "JSONTraceHandler",
    "Marker",
    "Profiler",
    "ProfilerAction",
    "SystemProfiler",
    "TorchProfiler",
    "TraceHandler",
    "cyclic_schedule",
]

__getattr__ = handed_on(
    {
        "JSONTraceHandler": "composer.profiler.json_trace_handler",
        "Marker": "composer.profiler.marker",
        "Profiler": "composer.profiler.profiler",
        "ProfilerAction": "composer.profiler.profiler_action",
        "SystemProfiler": "composer.profiler.system_profiler",
        "TorchProfiler": "composer.profiler.torch_profiler",
        "TraceHandler": "composer.profiler.trace_handler",
        "cyclic_schedule": "composer.profiler.profiler_schedule",
    }
)
