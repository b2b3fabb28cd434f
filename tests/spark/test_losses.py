from __future__ import annotations

import logging
import pickle

import pytest

from penstock.errors import StreamManagerException
from penstock.spark.losses import DataLossError, describe_damaged, describe_removed, report_loss


def test_loss_fails_the_query_and_names_the_option() -> None:
    with pytest.raises(DataLossError) as caught:
        report_loss("sensors", describe_removed(5, 8), fails=True)
    assert str(caught.value) == (
        "stream 'sensors': messages 5 to 7 were removed before they were read. To continue without "
        "these messages, set option failOnDataLoss to false"
    )
    assert isinstance(caught.value, StreamManagerException)


def test_allowed_loss_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "penstock.spark"):
        report_loss("sensors", describe_damaged(5, 6, "checksum mismatch"), fails=False)
    assert caplog.messages == [
        "stream 'sensors': message 5 cannot be read: checksum mismatch; the query continues "
        "without these messages"
    ]


def test_error_can_be_pickled() -> None:
    error = pickle.loads(pickle.dumps(DataLossError("messages are lost")))
    assert isinstance(error, DataLossError)
    assert str(error) == error.message == "messages are lost"
