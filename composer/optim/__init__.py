"""Optimizers with decoupled weight decay, and schedules in any unit of training time."""

from composer.optim.ademamix import DecoupledAdEMAMix
from composer.optim.decoupled_weight_decay import DecoupledAdamW, DecoupledSGDW
from composer.optim.muon import DecoupledMuon
from composer.optim.schedule_free import ScheduleFreeAdamW
from composer.optim.schedules import (
    ComposerScheduler,
    ConstantScheduler,
    CosineAnnealingScheduler,
    CosineAnnealingWarmRestartsScheduler,
    ExponentialScheduler,
    LinearScheduler,
    MultiStepScheduler,
    PolynomialScheduler,
    StepScheduler,
)
from composer.optim.torch_schedulers import compile_composer_scheduler
from composer.optim.warmup_schedules import (
    ConstantWithWarmupScheduler,
    CosineAnnealingWithWarmupScheduler,
    LinearWithWarmupScheduler,
    MultiStepWithWarmupScheduler,
    PolynomialWithWarmupScheduler,
    WarmupStableDecayScheduler,
)

__all__ = [
    "ComposerScheduler",
    "ConstantScheduler",
    "ConstantWithWarmupScheduler",
    "CosineAnnealingScheduler",
    "CosineAnnealingWarmRestartsScheduler",
    "CosineAnnealingWithWarmupScheduler",
    "DecoupledAdEMAMix",
    "DecoupledAdamW",
    "DecoupledMuon",
    "DecoupledSGDW",
    "ExponentialScheduler",
    "LinearScheduler",
    "LinearWithWarmupScheduler",
    "MultiStepScheduler",
    "MultiStepWithWarmupScheduler",
    "PolynomialScheduler",
    "PolynomialWithWarmupScheduler",
    "ScheduleFreeAdamW",
    "StepScheduler",
    "WarmupStableDecayScheduler",
    "compile_composer_scheduler",
]
