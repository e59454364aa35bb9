"""Z-loss: keeps logits from drifting away together."""

from composer.algorithms.z_loss.z_loss import ZLoss, compute_z_loss

__all__ = ["ZLoss", "compute_z_loss"]
