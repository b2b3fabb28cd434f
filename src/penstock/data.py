"""Alias of `penstock.model`, with the status codes, under the AWS SDK's module name."""

import penstock.model as model
from penstock.errors import ResponseStatusCode
from penstock.model import *  # noqa: F403

__all__ = ["ResponseStatusCode"]
__all__ += model.__all__
