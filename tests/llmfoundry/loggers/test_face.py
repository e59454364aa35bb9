import pytest

import llmfoundry.loggers
from composer.utils.import_helpers import MissingConditionalImportError
from llmfoundry.builders import build_logger
from llmfoundry.registry import loggers

SETTINGS = {
    "file_logger": {"capture_stdout": False, "capture_stderr": False},
    "slack": {"slack_logging_api_key": "key", "channel_id": "channel"},
    "remote_uploader_downloader": {"bucket_uri": "file:///tmp"},
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", sorted(set(loggers.get_all()) - {"comet"}))
def test_a_recipe_can_name_it(name):
    # Comet is left out: importing it patches what the next tests import.
    try:
        build_logger(name, SETTINGS.get(name, {}))
    except MissingConditionalImportError as error:
        pytest.skip(str(error))


def test_the_face_hands_on():
    for name in llmfoundry.loggers.__all__:
        assert getattr(llmfoundry.loggers, name).__name__ == name
