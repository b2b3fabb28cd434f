"""Shelves: records in order, the oldest dropped."""

from __future__ import annotations

from penstock.sandbox.shelf import Page, Shelf, Shelves

ROOMY = 1 << 30


def filled(count: int, limit_bytes: int = ROOMY, size: int = 1000) -> Shelf[int]:
    shelf: Shelf[int] = Shelf(limit_bytes)
    for record in range(count):
        assert shelf.add(record, size) == record
    return shelf


def test_records_are_read_in_their_order_from_any_number() -> None:
    shelf = filled(5)

    assert [number for number, _, _ in shelf.read(0)] == [0, 1, 2, 3, 4]
    assert [(number, record) for number, record, _ in shelf.read(3)] == [(3, 3), (4, 4)]
    assert list(shelf.read(5)) == []


def test_the_oldest_go_when_it_is_full_and_numbers_stay() -> None:
    shelf = filled(20_000, limit_bytes=1256 * 100)

    assert (shelf.first, shelf.end) == (19_900, 20_000)
    assert [number for number, _, _ in shelf.read(0)] == list(range(19_900, 20_000))


def test_places_of_dropped_records_are_given_up() -> None:
    shelf = filled(100_000, limit_bytes=1256 * 100)

    assert len(shelf._items) < 10_000


def test_a_record_that_is_too_large_stays_until_the_next() -> None:
    shelf = filled(1, limit_bytes=10)

    assert [record for _, record, _ in shelf.read(0)] == [0]
    shelf.add(1, 1)
    assert [record for _, record, _ in shelf.read(0)] == [1]


def test_pages_follow_each_other() -> None:
    shelf = filled(5)

    assert shelf.page(0, 2) == Page(0, 2, 5, [0, 1])
    assert shelf.page(2, 10) == Page(2, 5, 5, [2, 3, 4])
    assert shelf.page(5, 10) == Page(5, 5, 5, [])
    assert shelf.page(7, 10) == Page(5, 5, 5, [])


def test_a_page_is_not_larger_than_fits_but_has_one_record_at_least() -> None:
    shelf = filled(3, size=10 << 20)

    assert shelf.page(0, 10).records == [0]


def test_each_name_has_a_shelf_of_its_own() -> None:
    shelves: Shelves[str] = Shelves(ROOMY)
    shelves.add("b", "first", 1)
    shelves.add("a", "second", 1)
    shelves.add("b", "third", 1)

    assert shelves.names() == ["a", "b"]
    assert shelves.all("b") == ["first", "third"]
    assert shelves.page("b", 1, 10) == Page(1, 2, 2, ["third"])
    assert shelves.page("c", 0, 10) == Page(0, 0, 0, [])
    assert shelves.all("c") == []
