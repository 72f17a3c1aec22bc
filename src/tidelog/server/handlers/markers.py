"""WriteTxnMarkers: markers for transactions that nobody ends, as the admin tool sends them.

Source: Kafka's protocol guide, API 27; KIP-664 (hanging transactions), KIP-1228.
"""

from collections.abc import Mapping

from tidelog.error_codes import ErrorCode
from tidelog.protocol.messages.markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tidelog.server.node import Node
from tidelog.server.requests import RequestContext
from tidelog.types import TopicPartition


async def write_txn_markers(
    context: RequestContext, request: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse:
    """End transactions in the partitions named, whatever their coordinator knows.

    A producer that is named twice is answered once, with all its partitions.
    """
    found: dict[int, dict[TopicPartition, ErrorCode]] = {}
    for marker in request.markers:
        codes = found.setdefault(marker.producer_id, {})
        codes.update(await _write(context.node, marker))
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(producer_id=producer_id, topics=_topics(codes))
            for producer_id, codes in found.items()
        ]
    )


async def _write(node: Node, marker: WritableTxnMarker) -> Mapping[TopicPartition, ErrorCode]:
    places = dict.fromkeys(
        TopicPartition(topic.name, number)
        for topic in marker.topics
        for number in topic.partition_indexes
    )
    return await node.markers.write(
        list(places),
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        coordinator_epoch=marker.coordinator_epoch,
        commit=marker.transaction_result,
        transaction_version=marker.transaction_version,
    )


def _topics(codes: Mapping[TopicPartition, ErrorCode]) -> list[WritableTxnMarkerTopicResult]:
    topics: dict[str, WritableTxnMarkerTopicResult] = {}
    for place, code in codes.items():
        topic = topics.setdefault(place.topic, WritableTxnMarkerTopicResult(name=place.topic))
        topic.partitions.append(
            WritableTxnMarkerPartitionResult(partition_index=place.partition, error_code=code)
        )
    return list(topics.values())
