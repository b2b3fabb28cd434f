"""`penstock.exceptions`, the AWS SDK's module of exceptions."""

from __future__ import annotations

import penstock.exceptions
import penstock.sdk.exceptions
from penstock import sdk


def test_exceptions_has_every_public_exception() -> None:
    public = {name for name in sdk.__all__ if name.endswith("Exception")}

    assert public == set(penstock.sdk.exceptions.__all__)
    for name in public:
        assert getattr(penstock.exceptions, name) is getattr(sdk, name)
