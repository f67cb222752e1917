"""Options: Spark's connector's names and meanings, and one sentence for each mistake."""

import pytest

from penstock.arrow.asked import EARLIEST, LATEST, Bound, Selection
from penstock.arrow.errors import OptionError
from penstock.log.isolation import Isolation
from penstock.spark.options import read_options, write_options

STORE = {"store": "/data"}
EVENTS = {**STORE, "subscribe": "events"}


def test_the_least_that_is_needed() -> None:
    batch = read_options(EVENTS, streaming=False)
    assert batch.selection == Selection(names=("events",))
    assert (batch.start, batch.end) == (Bound(everywhere=EARLIEST), Bound(everywhere=LATEST))
    assert batch.fail_on_data_loss
    assert batch.isolation is Isolation.READ_COMMITTED
    assert read_options(EVENTS, streaming=True).start == Bound(everywhere=LATEST)


@pytest.mark.parametrize("name", ["isolation.level", "kafka.isolation.level", "Kafka.Isolation.Level"])
@pytest.mark.parametrize("isolation", list(Isolation))
def test_isolation_by_its_own_name_and_by_the_connector_s(name: str, isolation: Isolation) -> None:
    assert read_options({**EVENTS, name: isolation.value}, streaming=False).isolation is isolation


def test_names_are_matched_in_any_case() -> None:
    options = read_options({**STORE, "SUBSCRIBE": " a, b,a", "failondataloss": "FALSE"}, streaming=False)
    assert options.selection.names == ("a", "b")
    assert not options.fail_on_data_loss


def test_bounds_by_partition_and_time() -> None:
    offsets = '{"events": {"0": 23, "1": -2}}'
    assert read_options({**EVENTS, "startingOffsets": offsets}, streaming=True).start == Bound(
        partitions={"events": {0: 23, 1: -2}}
    )
    times = {**EVENTS, "startingTimestamp": "1000", "endingOffsetsByTimestamp": '{"events": {"0": 5}}'}
    options = read_options(times, streaming=False)
    assert options.start == Bound(everywhere=1000, by_timestamp=True)
    assert options.end == Bound(partitions={"events": {0: 5}}, by_timestamp=True)


def test_one_timestamp_comes_before_timestamps_by_partition_and_these_before_offsets() -> None:
    """As in Spark's connector, which documents it."""
    offsets = {**EVENTS, "startingOffsets": '{"events": {"0": 7}}', "endingOffsets": '{"events": {"0": 9}}'}
    by_partition = {
        **offsets,
        "startingOffsetsByTimestamp": '{"events": {"0": 5}}',
        "endingOffsetsByTimestamp": '{"events": {"0": 6}}',
    }
    read = read_options(by_partition, streaming=False)
    assert (read.start.partitions, read.end.partitions) == ({"events": {0: 5}}, {"events": {0: 6}})
    assert read.start.by_timestamp
    assert read.end.by_timestamp
    read = read_options({**by_partition, "startingTimestamp": "3", "endingTimestamp": "4"}, streaming=False)
    assert read.start == Bound(everywhere=3, by_timestamp=True)
    assert read.end == Bound(everywhere=4, by_timestamp=True)


@pytest.mark.parametrize(
    ("text", "ms"), [("5000", 5000), ("250ms", 250), ("30s", 30_000), ("2min", 120_000), ("1h", 3_600_000)]
)
def test_a_time_without_a_unit_is_in_milliseconds(text: str, ms: int) -> None:
    options = {**EVENTS, "minOffsetsPerTrigger": "10", "maxTriggerDelay": text}
    assert read_options(options, streaming=True).max_trigger_delay_ms == ms


def test_what_the_connector_reads_in_any_case_or_without_the_space_around_it() -> None:
    options = {**STORE, "subscribePattern": " a.* ", "startingOffsetsByTimestampStrategy": "LATEST"}
    read = read_options(options, streaming=True)
    assert (read.selection, read.timestamp_without_match) == (Selection(pattern="a.*"), "latest")
    assert write_options({**STORE, "topic": " out "}).topic == "out"


@pytest.mark.parametrize("name", ["kafka.auto.offset.reset", "Kafka.Value.Deserializer"])
def test_settings_of_a_client_that_ask_for_other_rows_are_refused(name: str) -> None:
    with pytest.raises(OptionError, match=f"The option '{name}' is not taken"):
        read_options({**EVENTS, name: "earliest"}, streaming=True)
    with pytest.raises(OptionError, match=r"give the rows a column 'partition'"):
        write_options({**STORE, "kafka.partitioner.class": "org.example.Mine"})


def test_a_directory_is_known_by_its_whole_path() -> None:
    assert str(read_options({**EVENTS, "store": "data"}, streaming=False).store).startswith("/")
    assert read_options({**EVENTS, "store": "s3://bucket/x"}, streaming=False).store == "s3://bucket/x"


def test_a_job_keeps_the_settings_that_it_had_for_the_connector() -> None:
    options = {
        **EVENTS,
        "kafka.security.protocol": "SASL_SSL",
        "kafka.max.partition.fetch.bytes": "1048576",
        "kafkaConsumer.pollTimeoutMs": "512",
        "fetchOffset.numRetries": "3",
        "groupIdPrefix": "x",
        "minOffsetsPerTrigger": "10",
        "maxTriggerDelay": "5m",
    }
    read = read_options(options, streaming=True)
    assert (read.min_offsets_per_trigger, read.max_trigger_delay_ms) == (10, 300_000)
    with pytest.raises(OptionError, match=r"sasl\.mechanism is one of"):
        read_options({**options, "group.id": "g"}, streaming=True)  # Now brokers are asked.


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"subscribe": "a"}, "Set the option 'store' (a directory or URL), or 'kafka.bootstrap.servers'."),
        (STORE, "Set exactly one of the options 'subscribe', 'subscribePattern' and 'assign'."),
        ({**EVENTS, "assign": "{}"}, "Set exactly one of the options"),
        ({**STORE, "subscribe": " ,"}, "The option 'subscribe' names no topic."),
        ({**STORE, "subscribePattern": "a("}, "is not a regular expression"),
        ({**STORE, "assign": '{"a": 1}'}, "The option 'assign' is JSON such as"),
        ({**EVENTS, "startingOffset": "earliest"}, "Did you mean 'startingOffsets'?"),
        ({**EVENTS, "startingOffsets": "soon"}, "The option 'startingOffsets' is JSON such as"),
        ({**EVENTS, "startingOffsets": '{"a": {"0": -3}}'}, "has a bad entry for 'a'"),
        ({**EVENTS, "startingOffsets": "latest"}, "A batch read starts at 'earliest'"),
        ({**EVENTS, "startingOffsets": '{"a": {"0": -1}}'}, "A batch read cannot start at 'latest'"),
        ({**EVENTS, "endingOffsets": "earliest"}, "endingOffsets is 'latest' or JSON"),
        ({**EVENTS, "failOnDataLoss": "no"}, "The option 'failOnDataLoss' is 'true' or 'false', not 'no'."),
        ({**EVENTS, "minPartitions": "many"}, "The option 'minPartitions' is a whole number, not 'many'."),
        (
            {**EVENTS, "minPartitions": "0"},
            "The option 'minPartitions' is a whole number from 1 on, not '0'.",
        ),
        ({**EVENTS, "maxOffsetsPerTrigger": "²"}, "The option 'maxOffsetsPerTrigger' is a whole number, not"),
        ({**STORE, "subscribePattern": " "}, "The option 'subscribePattern' is empty."),
        ({**EVENTS, "kafka.isolation.level": "x"}, "kafka.isolation.level is 'read_committed' or"),
        ({**EVENTS, "isolation.level": "READ_COMMITTED"}, "isolation.level is 'read_committed' or"),
        (
            {**EVENTS, "isolation.level": "read_committed", "kafka.isolation.level": "read_uncommitted"},
            "The options 'isolation.level' and 'kafka.isolation.level' contradict each other.",
        ),
        ({**EVENTS, "startingOffsetsByTimestampStrategy": "x"}, "is 'error' or 'latest', not 'x'."),
        ({**EVENTS, "maxTriggerDelay": "soon"}, "is a time such as '30s' or '15m', not 'soon'."),
        ({**EVENTS, "maxOffsetsPerTrigger": "1", "minOffsetsPerTrigger": "2"}, "minOffsetsPerTrigger is 2"),
    ],
)
def test_mistakes(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(OptionError) as caught:
        read_options(options, streaming=False)
    assert sentence in str(caught.value)
    assert str(caught.value).count("\n") == 0


def test_a_stream_has_no_end() -> None:
    with pytest.raises(OptionError, match="A streaming read has no end"):
        read_options({**EVENTS, "endingOffsets": "latest"}, streaming=True)


def test_a_writer_takes_what_the_connector_s_sink_takes() -> None:
    assert write_options({**STORE, "topic": "out", "includeHeaders": "true"}).topic == "out"
    with pytest.raises(OptionError, match="'includeHeaders' is 'true' or 'false'"):
        write_options({**STORE, "includeHeaders": "yes"})
    with pytest.raises(OptionError, match="'subscribe' is not one of"):
        write_options({**STORE, "subscribe": "in"})
