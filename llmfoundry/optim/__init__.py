"""Face of the optimizers and schedules that llmfoundry adds to composer's."""

from composer.utils.lazy import handed_on

__all__ = [
    "DecoupledAdaLRLion",
    "DecoupledClipLion",
    "DecoupledLionW",
    "InverseSquareRootWithWarmupScheduler",
    "NoOp",
]

__getattr__ = handed_on(
    {
        "DecoupledLionW": "llmfoundry.optim.lion",
        "DecoupledAdaLRLion": "llmfoundry.optim.adaptive_lion",
        "DecoupledClipLion": "llmfoundry.optim.adaptive_lion",
        "InverseSquareRootWithWarmupScheduler": "llmfoundry.optim.scheduler",
        "NoOp": "llmfoundry.optim.no_op",
    }
)
