"""The warning categories that algorithms use, so that a user can filter them."""


class NoEffectWarning(Warning):
    """Warns that an algorithm found nothing to change in the model."""


class NotIntendedUseWarning(Warning):
    """Warns that algorithms are combined or set in a way that they were not meant for."""
