"""Alias of `penstock.sdk.Util`, under the AWS SDK's module name."""

from penstock.sdk import Util

__all__ = ["Util"]
