"""Alias of `penstock.sdk`, under the AWS SDK's module name."""

from penstock.sdk import *  # noqa: F403
