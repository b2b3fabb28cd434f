"""The types of the model under the module name that they have in the AWS SDK."""

import penstock.model as model
from penstock.errors import ResponseStatusCode
from penstock.model import *  # noqa: F403

__all__ = ["ResponseStatusCode"]
__all__ += model.__all__
