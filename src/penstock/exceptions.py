"""Alias of `penstock.sdk.exceptions`, under the AWS SDK's module name."""

import penstock.sdk.exceptions as original
from penstock.sdk.exceptions import *  # noqa: F403

__all__: list[str] = []
__all__ += original.__all__
