"""A public path; the home is ``composer.core.logger``."""

from composer.core.logger import Logger, format_log_data_value

__all__ = ["Logger", "format_log_data_value"]
