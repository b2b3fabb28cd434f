"""Operation numbers: 0 to 17 from Stream Manager, 64 and above for Penstock's extensions."""

from __future__ import annotations

from enum import IntEnum


class Operation(IntEnum):
    Unknown = 0
    Connect = 1
    CreateMessageStream = 2
    DeleteMessageStream = 3
    AppendMessage = 4
    ReadMessages = 5
    ConnectResponse = 6
    CreateMessageStreamResponse = 7
    DeleteMessageStreamResponse = 8
    AppendMessageResponse = 9
    ReadMessagesResponse = 10
    ListStreams = 11
    ListStreamsResponse = 12
    DescribeMessageStream = 13
    DescribeMessageStreamResponse = 14
    UpdateMessageStream = 15
    UpdateMessageStreamResponse = 16
    UnknownOperationError = 17

    AppendMessages = 64
    AppendMessagesResponse = 65
    ReadColumns = 66
    ReadColumnsResponse = 67
    Statistics = 68
    StatisticsResponse = 69
    WatchStreams = 70
    WatchStreamsResponse = 71
    LocateMessages = 72
    LocateMessagesResponse = 73
    ReadStored = 74
    ReadStoredResponse = 75
    PlanExports = 76
    PlanExportsResponse = 77
    CommitExports = 78
    CommitExportsResponse = 79
    ReserveBandwidth = 80
    ReserveBandwidthResponse = 81
    RewindExport = 82
    RewindExportResponse = 83


RESPONSE_TO: dict[int, Operation] = {
    Operation.Connect: Operation.ConnectResponse,
    Operation.CreateMessageStream: Operation.CreateMessageStreamResponse,
    Operation.DeleteMessageStream: Operation.DeleteMessageStreamResponse,
    Operation.AppendMessage: Operation.AppendMessageResponse,
    Operation.ReadMessages: Operation.ReadMessagesResponse,
    Operation.ListStreams: Operation.ListStreamsResponse,
    Operation.DescribeMessageStream: Operation.DescribeMessageStreamResponse,
    Operation.UpdateMessageStream: Operation.UpdateMessageStreamResponse,
    Operation.AppendMessages: Operation.AppendMessagesResponse,
    Operation.ReadColumns: Operation.ReadColumnsResponse,
    Operation.Statistics: Operation.StatisticsResponse,
    Operation.WatchStreams: Operation.WatchStreamsResponse,
    Operation.LocateMessages: Operation.LocateMessagesResponse,
    Operation.ReadStored: Operation.ReadStoredResponse,
    Operation.PlanExports: Operation.PlanExportsResponse,
    Operation.CommitExports: Operation.CommitExportsResponse,
    Operation.ReserveBandwidth: Operation.ReserveBandwidthResponse,
    Operation.RewindExport: Operation.RewindExportResponse,
}
