"""Alias of `penstock.sdk.exceptions`, under the AWS SDK's module name."""

from penstock.sdk.exceptions import *  # noqa: F403
