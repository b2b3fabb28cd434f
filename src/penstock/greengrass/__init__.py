"""Penstock as a component of AWS IoT Greengrass V2, instead of its Stream Manager.

The nucleus verifies the tokens of other components, and publishes the broker's port to them.
"""
