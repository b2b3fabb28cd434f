"""One export: where it stands, what of it may leave, and what a delivery means for the next one."""

from __future__ import annotations

import pytest

from penstock.broker.exports.pacing import Due
from penstock.model.exporting import Lane
from tests.broker.exports.workbench import (
    Workbench,
    failure,
    interim,
    report,
    skip,
    to_http,
    to_s3,
    upload,
)


def test_it_goes_on_behind_what_was_exported(bench: Workbench) -> None:
    bench.create("s", to_http(), 5)
    assert bench.export("s").next_number == 0
    bench.commit(report(bench.plan_one(), settled_end=3))
    assert bench.export("s").next_number == 3


def test_it_begins_at_its_start_also_if_that_is_to_come(bench: Workbench) -> None:
    bench.create("s", to_http(startSequenceNumber=7), 5)
    assert bench.plan() == []
    assert bench.export("s").due(bench.now) == Due(7, None, 8)
    bench.append("s", 5)
    found = bench.plan_one()
    assert (found.first, found.end) == (7, 10)


def test_what_was_dropped_is_passed_over(bench: Workbench) -> None:
    stream = bench.create("s", to_http(), 0, maxSize=4096, streamSegmentSize=1024)
    bench.append("s", 20, size=500)
    assert stream.log.oldest > 0
    assert bench.plan_one().first == stream.log.oldest


def test_what_was_dropped_before_it_was_exported_is_counted(bench: Workbench) -> None:
    stream = bench.create("s", to_http(), 0, maxSize=4096, streamSegmentSize=1024)

    def lost() -> int:
        return bench.exports.activities(stream)["e"].lost_messages

    bench.append("s", 8, size=500)
    assert lost() == 0
    bench.append("s", 12, size=500)
    assert lost() == stream.log.oldest
    # What somebody has may arrive all the same, and what has arrived is not lost.
    before = lost()
    found = bench.plan_one()
    bench.append("s", 2, size=500)
    bench.commit(report(found))
    bench.append("s", 6, size=500)
    assert lost() == before
    bench.append("s", 20, size=500)
    assert lost() == before + stream.log.oldest - found.end


def test_what_could_not_be_read_is_lost_and_said(
    bench: Workbench, caplog: pytest.LogCaptureFixture
) -> None:
    stream = bench.create("s", to_http(), 5)

    bench.commit(report(bench.plan_one(), missing=2))

    assert bench.exports.activities(stream)["e"].lost_messages == 2
    assert "stream 's', export 'e': messages that cannot be read are left out: 2" in caplog.text


def test_damage_that_a_pipeline_could_not_read_is_known(bench: Workbench) -> None:
    stream = bench.create("s", to_http(), 5)
    (data,) = bench.store.root.glob("streams/*/*.data")
    with data.open("r+b") as file:
        file.write(b"!")

    bench.commit(report(bench.plan_one(), missing=1))

    assert [(each.first, each.end) for each in stream.log.damage.ranges()] == [(0, 1)]


def test_what_was_due_once_stays_due(bench: Workbench) -> None:
    bench.create("s", to_http(batchSize=4, batchIntervalMillis=60_000), 5)
    found = bench.plan_one()
    assert (found.first, found.end) == (0, 4)
    bench.commit(report(found, settled_end=2))
    rest = bench.plan_one()
    assert (rest.first, rest.end) == (2, 4)
    bench.commit(report(rest))
    assert bench.plan() == []
    bench.wait(60)
    assert bench.plan_one().end == 5


def test_a_backlog_is_handed_out_in_slices_that_grow_while_they_are_quick(
    bench: Workbench,
) -> None:
    bench.create("s", to_http())
    for _ in range(40):
        bench.append("s", 1, size=200_000)
    counts = []
    for _ in range(3):
        found = bench.plan_one()
        count = found.end - found.first
        counts.append(count)
        bench.commit(report(found, exported_bytes=200_000 * count, elapsed_millis=10))
    assert counts == [5, 10, 20]


def test_a_slice_that_was_too_much_is_followed_by_a_smaller_one(bench: Workbench) -> None:
    bench.create("s", to_http(), 20_000)
    found = bench.plan_one()
    bench.commit(report(found, settled_end=1000, exported_bytes=10_000))
    smaller = bench.plan_one()
    assert smaller.first == 1000
    assert 1000 <= smaller.end - smaller.first <= found.end / 2


def test_a_message_larger_than_all_limits_goes_alone(bench: Workbench) -> None:
    bench.create("s", to_http())
    bench.append("s", 2, size=3_000_000)
    found = bench.plan_one(max_bytes=1000)
    assert (found.first, found.end) == (0, 1)


def test_those_of_a_call_that_failed_in_part_go_together_again(bench: Workbench) -> None:
    bench.create("s", to_http(), 500)
    found = bench.plan_one()
    bench.commit(failure(found, arrived=[450, 499], exported_messages=2))
    bench.wait(1)
    again = bench.plan_one(max_bytes=10)
    assert (again.first, again.end, again.arrived) == (0, 500, [450, 499])


def test_what_arrived_counts_until_it_is_behind(bench: Workbench) -> None:
    bench.create("s", to_http(), 10)
    bench.commit(failure(bench.plan_one(), arrived=[2, 5]))
    bench.wait(1)
    found = bench.plan_one()
    bench.commit(report(found, settled_end=4, arrived=[5]))
    found = bench.plan_one()
    assert (found.first, found.arrived) == (4, [5])


def test_failures_are_followed_by_pauses_that_grow_and_end_with_a_success(
    bench: Workbench,
) -> None:
    bench.create("s", to_http(), 3)
    waited = []
    for failures in range(1, 5):
        bench.commit(failure(bench.plan_one()))
        activity = bench.exports.activities(bench.streams.find("s"))["e"]
        assert activity.failures == failures
        assert activity.retry_in_millis is not None
        assert bench.plan() == []
        waited.append(activity.retry_in_millis)
        bench.wait(activity.retry_in_millis / 1000 + 0.01)
    assert waited == sorted(waited)
    assert waited[-1] > 2 * waited[0]
    bench.commit(report(bench.plan_one()))
    activity = bench.exports.activities(bench.streams.find("s"))["e"]
    assert (activity.failures, activity.retry_in_millis) == (0, None)


def test_one_that_gets_on_although_it_fails_does_not_wait_longer_and_longer(
    bench: Workbench,
) -> None:
    bench.create("s", to_http(), 10)
    for end in range(1, 6):
        bench.commit(failure(bench.plan_one(), settled_end=end, exported_messages=1))
        assert bench.export("s").failures == 1
        bench.wait(0.5)


def test_an_upload_of_which_more_parts_arrive_gets_on(bench: Workbench) -> None:
    bench.create("s", to_s3(), 1)
    for parts in (["a"], ["a", "", "c"], ["a", "b", "c"]):
        found = bench.plan_file()
        # Whether it was told in the middle or not.
        bench.commit(interim(found, uploads=[upload(0, parts=parts)]))
        bench.commit(failure(found, uploads=[upload(0, parts=parts)]))
        assert bench.export("s").failures == 1
        bench.wait(0.5)
    bench.commit(failure(bench.plan_file(), uploads=[upload(0, parts=["a", "b", "c"])]))
    assert bench.export("s").failures == 2


def test_a_destination_is_left_alone_for_as_long_as_it_asks(bench: Workbench) -> None:
    bench.create("s", to_http(), 3)
    bench.commit(report(bench.plan_one(), settled_end=1, pause_millis=20_000))
    bench.wait(19.9)
    assert bench.plan() == []
    bench.wait(0.2)
    assert bench.plan_one().first == 1


def test_one_that_was_slow_is_in_another_lane_until_it_is_not(bench: Workbench) -> None:
    bench.create("s", to_http(), 5)
    bench.commit(report(bench.plan_one(), settled_end=1, was_slow=True))
    assert bench.plan() == []
    found = bench.plan_one(Lane.recovering)
    bench.commit(report(found, settled_end=2))
    assert bench.plan(Lane.recovering) == []
    assert bench.plan_one().first == 2


def test_after_a_start_one_with_an_error_begins_where_it_harms_nobody(bench: Workbench) -> None:
    bench.create("s", to_http(), 5)
    bench.commit(failure(bench.plan_one()))
    bench.restart()
    assert bench.plan() == []
    assert bench.plan_one(Lane.recovering).first == 0


def test_uploads_of_files_have_a_lane_of_their_own(bench: Workbench) -> None:
    bench.create("s", {"s3TaskExecutor": [{"identifier": "e"}]}, 1)
    for lane in (Lane.steady, Lane.recovering):
        assert bench.plan(lane) == []
    bench.commit(report(bench.plan_one(Lane.files), settled_end=0, was_slow=True))
    assert bench.plan_one(Lane.files).first == 0


def test_progress_counts_what_arrived_and_what_was_skipped(bench: Workbench) -> None:
    bench.create("s", to_http(), 10)
    found = bench.plan_one()
    bench.commit(
        report(found, settled_end=6, exported_messages=5, exported_bytes=50, skipped=[skip(2)])
    )
    progress = bench.progress("s")
    assert (progress.last_exported, progress.last_time) == (5, bench.now)
    assert (progress.processed_messages, progress.exported_bytes) == (6, 50)
    assert progress.skipped_messages == 1
    assert progress.error_message == "a message was skipped; the last, 2: 2 is malformed"
    bench.wait(5)
    bench.commit(failure(bench.plan_one(), error="no way"))
    progress = bench.progress("s")
    assert (progress.last_exported, progress.last_time) == (5, bench.now)
    assert (progress.processed_messages, progress.error_message) == (6, "no way")
    bench.wait(5)
    bench.commit(report(bench.plan_one()))
    assert bench.progress("s").error_message == ""


@pytest.mark.parametrize("sent", [1, 10**12])
def test_what_a_byte_costs_on_the_wire_is_learnt_and_not_believed_to_be_anything(
    bench: Workbench, sent: int
) -> None:
    bench.create("s", to_http(), 3)
    bench.commit(report(bench.plan_one(), exported_bytes=10, sent_bytes=sent))
    assert bench.export("s").overhead == min(sent / 10, 100)


def test_a_destination_that_asks_for_a_day_gets_five_minutes(bench: Workbench) -> None:
    bench.create("s", to_http(), 1)
    bench.commit(failure(bench.plan_one(), pause_millis=86_400_000))
    bench.wait(299)
    assert bench.plan() == []
    bench.wait(1)
    assert bench.plan_one().first == 0


def test_another_configuration_is_tried_at_once(bench: Workbench) -> None:
    bench.create("s", to_http(), 1)
    bench.commit(failure(bench.plan_one(), pause_millis=60_000))
    assert bench.plan() == []
    bench.update("s", to_http(uri="http://127.0.0.1/corrected"))
    assert bench.plan_one().config["uri"] == "http://127.0.0.1/corrected"


# S3 tasks


def test_a_slice_of_tasks_has_no_more_than_can_be_looked_through(bench: Workbench) -> None:
    bench.create("s", to_s3(), 2500)
    found = bench.plan_file()
    assert (found.first, found.end) == (0, 2000)
    # However slow it was: how long a file takes says nothing about the number of tasks.
    bench.commit(report(found, settled_end=1, was_slow=True))
    assert bench.plan_file().end == 2001


def test_a_slice_of_large_tasks_is_no_larger_than_was_asked_for(bench: Workbench) -> None:
    bench.create("s", to_s3())
    bench.append("s", 30, size=100_000)
    assert bench.plan_file().end == 10
    assert bench.plan_file(max_bytes=250_000).end == 2


def test_a_slice_has_the_uploads_that_begun_in_it_and_how_long_tasks_live(
    bench: Workbench,
) -> None:
    bench.create("s", to_s3(), 5, timeToLiveMillis=60_000)
    bench.commit(failure(bench.plan_file(), uploads=[upload(0), upload(3)]))
    bench.wait(1)
    found = bench.plan_file()
    assert (found.uploads, found.time_to_live) == ([upload(0), upload(3)], 60_000)
    assert found.max_sent_bytes is None
    assert bench.plan_file(max_bytes=30).uploads == [upload(0)]


def test_other_slices_have_nothing_of_that(bench: Workbench) -> None:
    bench.create("s", to_http(), 5, timeToLiveMillis=60_000)
    found = bench.plan_one()
    assert (found.uploads, found.time_to_live, found.max_sent_bytes) == ([], None, None)
