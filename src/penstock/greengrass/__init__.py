"""Penstock as a component of AWS IoT Greengrass V2, in the place of its Stream Manager.

The nucleus says whose tokens are good, and is told which port clients find us on.
"""
