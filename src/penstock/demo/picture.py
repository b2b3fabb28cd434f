"""What the camera sees: a turbine whose rotor turns."""

from __future__ import annotations

import math

from penstock.demo.png import encode_png

WIDTH, HEIGHT = 240, 180
_HUB_X, _HUB_Y = 120, 70
_HORIZON = 150
_BLADE = 58

_WHITE = bytes([245, 247, 250])
_GREY = bytes([120, 130, 140])
_GRASS = bytes([92, 138, 84])


def draw_turbine(angle: float) -> bytes:
    """A PNG; the first of the three blades is at this angle, in radians, clockwise from above."""
    rows = [bytearray(_sky(y) * WIDTH) for y in range(_HORIZON)]
    rows += [bytearray(_GRASS * WIDTH) for _ in range(_HORIZON, HEIGHT)]
    for y in range(_HUB_Y, _HORIZON + 8):
        _fill(rows, _HUB_X, y, 2 + (y - _HUB_Y) // 30, 0, _GREY)
    for blade in range(3):
        turned = angle + blade * math.tau / 3
        for step in range(2 * _BLADE):
            thickness = 1 if step < _BLADE else 0
            across = round(_HUB_X + math.sin(turned) * step / 2)
            up = round(_HUB_Y - math.cos(turned) * step / 2)
            _fill(rows, across, up, thickness, thickness, _WHITE)
    _fill(rows, _HUB_X, _HUB_Y, 3, 3, _GREY)
    return encode_png(rows)


def _sky(y: int) -> bytes:
    return bytes([110 + 90 * y // _HORIZON, 165 + 50 * y // _HORIZON, 225])


def _fill(rows: list[bytearray], x: int, y: int, across: int, down: int, colour: bytes) -> None:
    """A box around a pixel."""
    for row in rows[y - down : y + down + 1]:
        row[3 * (x - across) : 3 * (x + across + 1)] = colour * (2 * across + 1)
