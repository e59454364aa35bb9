"""No-op model: a model that costs nothing, to measure what everything around it costs."""

from composer.algorithms.no_op_model.no_op_model import NoOpModel, NoOpModelClass

__all__ = ["NoOpModel", "NoOpModelClass"]
