"""`penstock.data`, the AWS SDK's module of types."""

from __future__ import annotations

import penstock.data
from penstock import model
from penstock.errors import ResponseStatusCode


def test_data_has_every_type_of_the_model() -> None:
    for name in model.__all__:
        assert getattr(penstock.data, name) is getattr(model, name)


def test_data_has_the_status_codes() -> None:
    assert penstock.data.ResponseStatusCode is ResponseStatusCode
