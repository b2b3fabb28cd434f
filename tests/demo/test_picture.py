"""The picture of the turbine."""

from __future__ import annotations

import math

from penstock.demo.picture import HEIGHT, WIDTH, draw_turbine
from tests.demo.test_png import decode_png


def colour(rows: list[bytes], x: int, y: int) -> tuple[int, ...]:
    return tuple(rows[y][3 * x : 3 * x + 3])


def test_it_shows_sky_and_grass_and_a_blade_that_points_up() -> None:
    rows = decode_png(draw_turbine(0.0))

    assert {len(row) for row in rows} == {3 * WIDTH}
    assert len(rows) == HEIGHT
    red, green, blue = colour(rows, 5, 5)
    assert blue > red
    red, green, blue = colour(rows, 5, HEIGHT - 5)
    assert green > blue
    assert min(colour(rows, WIDTH // 2, 30)) > 240


def test_the_rotor_turns_and_has_three_blades() -> None:
    assert draw_turbine(0.4) != draw_turbine(0.6)
    assert draw_turbine(0.4) == draw_turbine(0.4 + math.tau / 3)


def test_all_angles_are_within_the_picture() -> None:
    sizes = {tuple(map(len, decode_png(draw_turbine(step * math.tau / 36)))) for step in range(36)}

    assert sizes == {(3 * WIDTH,) * HEIGHT}
