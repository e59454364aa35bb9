import composer.core.logger
import composer.core.logger_destination
import composer.loggers.logger
import composer.loggers.logger_destination


def test_old_paths_lead_home():
    assert composer.loggers.logger.Logger is composer.core.logger.Logger
    assert (
        composer.loggers.logger.format_log_data_value is composer.core.logger.format_log_data_value
    )
    assert (
        composer.loggers.logger_destination.LoggerDestination
        is composer.core.logger_destination.LoggerDestination
    )
