"""What the codec does beyond agreeing with others: versions, defaults, tags, nulls and ranges."""

from struct import pack

import pytest

from penstock.wire import api
from penstock.wire.api.create_topics import CreatableTopicResult, CreateTopicsResponse
from penstock.wire.api.describe_groups import DescribedGroup, DescribeGroupsResponse
from penstock.wire.api.describe_topic_partitions import Cursor, DescribeTopicPartitionsRequest
from penstock.wire.api.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from penstock.wire.api.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from penstock.wire.api.list_groups import ListedGroup, ListGroupsResponse
from penstock.wire.api.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from penstock.wire.api.metadata import MetadataRequest, MetadataRequestTopic
from penstock.wire.api.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from penstock.wire.codec import ITEMS_MAX, decode, decode_versioned, encode, encode_pieces, encode_versioned
from penstock.wire.errors import WireError
from penstock.wire.schema import ApiMessage
from penstock.wire.schemas.consumer_protocol import ConsumerProtocolSubscription, TopicPartition
from penstock.wire.texts import STRING_BYTES_MAX
from tests.wire.samples import API_CLASSES, name_of


@pytest.mark.parametrize("cls", API_CLASSES, ids=name_of)
def test_every_message_is_built_from_nothing(cls: type[ApiMessage]) -> None:
    for version in range(cls.min_version, cls.max_version + 1):
        data = encode(cls(), version)
        assert decode(cls, version, data) == (cls(), len(data))


def test_names_of_apis_follow_from_their_modules() -> None:
    assert api.api_name(23) == "OffsetForLeaderEpoch"
    for key in api.API_MODULES:
        assert api.request_class(key).api_key == api.response_class(key).api_key == key
        assert api.request_class(key).max_version == api.response_class(key).max_version


@pytest.mark.parametrize("version", [-1, 19])
def test_a_version_that_does_not_exist_is_our_mistake(version: int) -> None:
    with pytest.raises(ValueError, match="has versions 0 to 18"):
        decode(FetchRequest, version, b"")
    with pytest.raises(ValueError, match="has versions 0 to 18"):
        encode(FetchRequest(), version)


def test_an_ignorable_field_is_dropped_from_versions_that_lack_it() -> None:
    data = encode(FetchRequest(max_bytes=5, isolation_level=1, rack_id="r"), 2)
    message, _ = decode(FetchRequest, 2, data)
    assert message == FetchRequest()


def test_a_field_that_matters_is_not_dropped_in_silence() -> None:
    request = FetchRequest(topics=[FetchTopic(topic="t", partitions=[FetchPartition(last_fetched_epoch=3)])])
    assert encode(request, 12)
    with pytest.raises(ValueError, match=r"\.last_fetched_epoch cannot be written at version 11"):
        encode(request, 11)


def test_old_and_new_forms_of_an_answer_exclude_each_other() -> None:
    topic = ListOffsetsTopicResponse(partitions=[ListOffsetsPartitionResponse(offset=7)])
    with pytest.raises(ValueError, match="offset cannot be written at version 0"):
        encode(ListOffsetsResponse(topics=[topic]), 0)


def test_null_where_the_version_does_not_allow_it() -> None:
    assert decode(MetadataRequest, 1, encode(MetadataRequest(topics=None), 1))[0].topics is None
    with pytest.raises(ValueError, match="topics is null at version 0"):
        encode(MetadataRequest(topics=None), 0)
    with pytest.raises(WireError, match="topics must not be null"):
        decode(MetadataRequest, 0, b"\xff\xff\xff\xff")


def test_a_number_out_of_range_is_our_mistake() -> None:
    with pytest.raises(ValueError, match="FetchRequest version 4"):
        encode(FetchRequest(max_wait_ms=2**31), 4)


def test_a_string_too_long_for_its_length_is_our_mistake() -> None:
    name = "x" * 40_000
    with pytest.raises(ValueError, match="MetadataRequest version 4"):
        encode(MetadataRequest(topics=[MetadataRequestTopic(name=name)]), 4)


def test_unknown_tags_are_skipped_and_known_ones_read() -> None:
    plain = encode(FetchRequest(), 12)
    assert plain.endswith(b"\0")
    unknown = b"\x07\x03abc"
    cluster = b"\x00\x04\x03abc"[:2] + b"\x04abc"
    with_tags = plain[:-1] + b"\x02" + cluster + unknown
    message, end = decode(FetchRequest, 12, with_tags)
    assert message == FetchRequest(cluster_id="abc")
    assert end == len(with_tags)
    assert encode(message, 12) == plain[:-1] + b"\x01" + cluster


def test_a_tag_whose_size_is_wrong_is_refused() -> None:
    plain = encode(FetchRequest(), 12)
    with pytest.raises(WireError, match="cluster_id has another size"):
        decode(FetchRequest, 12, plain[:-1] + b"\x01\x00\x06\x04abc\x00\x00")
    with pytest.raises(WireError, match="longer than the message"):
        decode(FetchRequest, 12, plain[:-1] + b"\x01\x09\x06\x00")


def test_a_nullable_structure_says_whether_it_is_there() -> None:
    for cursor in (None, Cursor(topic_name="t", partition_index=4)):
        request = DescribeTopicPartitionsRequest(cursor=cursor)
        data = encode(request, 0)
        assert decode(DescribeTopicPartitionsRequest, 0, data)[0] == request


def test_bytes_after_a_message_are_left_to_the_caller() -> None:
    data = encode(MetadataRequest(topics=[]), 4)
    assert decode(MetadataRequest, 4, data + b"more")[1] == len(data)
    assert decode(MetadataRequest, 4, b"head" + data, 4) == (MetadataRequest(topics=[]), len(data) + 4)


def test_records_are_not_copied() -> None:
    records = bytes(range(256))
    request = ProduceRequest(
        topic_data=[TopicProduceData(name="t", partition_data=[PartitionProduceData(records=records)])]
    )
    frame = bytearray(encode(request, 9))
    message, _ = decode(ProduceRequest, 9, memoryview(frame))
    view = message.topic_data[0].partition_data[0].records
    assert isinstance(view, memoryview)
    assert view == records
    frame[frame.index(records)] = 99
    assert view[0] == 99

    batch = bytearray(b"batch")
    answer = FetchResponse(responses=[FetchableTopicResponse(partitions=[PartitionData(records=batch)])])
    assert any(piece is batch for piece in encode_pieces(answer, 4))


@pytest.mark.parametrize("text", [b"\xff\xfe", b"\xed\xa0\x80", b"\xc0\x80"])
def test_strings_must_be_utf8(text: bytes) -> None:
    with pytest.raises(WireError, match="MetadataRequest"):
        decode(MetadataRequest, 1, pack(">ih", 1, len(text)) + text)


def test_default_lists_are_not_shared() -> None:
    FetchRequest().topics.append(FetchTopic())
    decode(FetchRequest, 0, encode(FetchRequest(), 0))[0].forgotten_topics_data.append(None)  # type: ignore[arg-type]
    assert FetchRequest().topics == []
    assert decode(FetchRequest, 0, encode(FetchRequest(), 0))[0].forgotten_topics_data == []


def test_a_message_behind_its_version() -> None:
    subscription = ConsumerProtocolSubscription(
        topics=["a"], owned_partitions=[TopicPartition(topic="a", partitions=[1, 2])], generation_id=3
    )
    data = encode_versioned(subscription)
    assert data[:2] == b"\0\3"
    assert decode_versioned(ConsumerProtocolSubscription, data) == subscription
    newer = b"\0\x09" + data[2:] + b"what version 9 adds"
    assert decode_versioned(ConsumerProtocolSubscription, newer, newer_ok=True) == subscription
    for bad in (newer, b"\xff\xff" + data[2:], b"\0"):
        with pytest.raises(WireError):
            decode_versioned(ConsumerProtocolSubscription, bad)


@pytest.mark.parametrize("version", [4, 5])
def test_an_error_message_is_cut_where_it_does_not_fit(version: int) -> None:
    """It repeats a name, so it is longer than the longest one."""
    for message, left in (("é" * 16_384, "é" * 16_383), ("x" * 40_000, "x" * 32_767), (None, None)):
        answer = CreateTopicsResponse(topics=[CreatableTopicResult(name="t", error_message=message)])
        told, _ = decode(CreateTopicsResponse, version, encode(answer, version))
        assert [topic.error_message for topic in told.topics] == [left]


def test_what_clients_send_has_a_bounded_number_of_items() -> None:
    """Items cost far more memory and time than bytes. Nested arrays count together."""
    parts = [FetchPartition()] * 4
    topics = [FetchTopic(topic="t", partitions=parts)] * (ITEMS_MAX // 5)
    data = encode(FetchRequest(topics=topics), 4)
    message, _ = decode(FetchRequest, 4, data)
    assert sum(1 + len(topic.partitions) for topic in message.topics) == ITEMS_MAX
    for version in (4, 12):
        more = FetchRequest(topics=[*topics, FetchTopic(topic="t")])
        with pytest.raises(WireError, match=f"more than {ITEMS_MAX} items"):
            decode(FetchRequest, version, encode(more, version))
    names = [str(number) for number in range(ITEMS_MAX + 1)]
    asked = MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names])
    with pytest.raises(WireError, match="items"):
        decode(MetadataRequest, 1, encode(asked, 1))
    with pytest.raises(WireError, match="items"):
        decode(ConsumerProtocolSubscription, 0, encode(ConsumerProtocolSubscription(topics=names), 0))
    found = FetchResponse(responses=[FetchableTopicResponse(topic=name) for name in names])
    assert decode(FetchResponse, 4, encode(found, 4))[0] == found


def test_an_answer_of_many_pieces_is_whole() -> None:
    groups = [ListedGroup(group_id=str(at), protocol_type="consumer") for at in range(20_000)]
    for version in (0, 4):
        data = encode(ListGroupsResponse(groups=groups), version)
        assert decode(ListGroupsResponse, version, data) == (ListGroupsResponse(groups=groups), len(data))
        assert len(encode_pieces(ListGroupsResponse(groups=groups), version)) < 100


def test_what_clients_send_has_strings_that_every_version_can_say() -> None:
    """A longer one would fit into newer requests, and neither into older answers nor into keys of records."""
    longest = "\N{LATIN SMALL LETTER E WITH ACUTE}" * (STRING_BYTES_MAX // 2) + "e"
    group = JoinGroupRequest(group_id=longest, group_instance_id=longest)
    for version in (5, 6):
        assert decode(JoinGroupRequest, version, encode(group, version))[0] == group
    for longer in (
        JoinGroupRequest(group_id=longest + "e"),
        JoinGroupRequest(group_id="g", group_instance_id=longest + "e"),
        JoinGroupRequest(group_id="g", protocols=[JoinGroupRequestProtocol(name="p" * 40_000)]),
    ):
        with pytest.raises(WireError, match="is too long"):
            decode(JoinGroupRequest, 6, encode(longer, 6))
    found = DescribeGroupsResponse(groups=[DescribedGroup(group_id=longest + "e")])
    assert decode(DescribeGroupsResponse, 5, encode(found, 5))[0] == found
