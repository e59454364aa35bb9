"""The shapes of the schedules, as functions of the share of their time that has passed."""

import math


def cosine(x: float, alpha_f: float) -> float:
    """Falls from 1 at ``x = 0`` to ``alpha_f`` at ``x = 1`` and stays there."""
    return alpha_f + (1.0 - alpha_f) * (1.0 + math.cos(math.pi * min(max(x, 0.0), 1.0))) / 2


def linear(x: float, alpha_i: float, alpha_f: float) -> float:
    """Goes from ``alpha_i`` at ``x = 0`` to ``alpha_f`` at ``x = 1`` and stays there."""
    return alpha_i + (alpha_f - alpha_i) * min(1.0, x)


def polynomial(x: float, power: float, alpha_f: float) -> float:
    """Falls from 1 at ``x = 0`` to ``alpha_f`` at ``x = 1`` as a power of what is left."""
    return alpha_f + (1.0 - alpha_f) * (1.0 - min(1.0, x)) ** power


def one_minus_sqrt(x: float, alpha_f: float) -> float:
    """Falls from 1 at ``x = 0`` to ``alpha_f`` at ``x = 1`` as one minus the root of ``x``."""
    return alpha_f + (1.0 - alpha_f) * (1.0 - math.sqrt(min(max(x, 0.0), 1.0)))
