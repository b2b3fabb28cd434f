"""The client under the module name that it has in the AWS SDK."""

from penstock.api import *  # noqa: F403
