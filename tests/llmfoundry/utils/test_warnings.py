"""What keeps a message out of a log."""

import logging

import pytest

from llmfoundry.utils import SpecificWarningFilter


def test_records_with_the_text_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("test_warnings")
    log.addFilter(SpecificWarningFilter("of file.py"))
    log.warning("A new version of %s is there.", "file.py")
    log.warning("Another.")
    assert caplog.messages == ["Another."]
