"""`penstock cluster`: its brokers, the partitions that each leads, how far each has read the metadata log,
and the feature level that all of them can read.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from penstock.cli.options import cluster_options, connected, security
from penstock.cli.output import counted, show, wants_json
from penstock.metadata.levels import FEATURE

if TYPE_CHECKING:
    from penstock.client import Client, Connection
    from penstock.wire.api.describe_quorum import ReplicaState, ResponsePartitionData

ANSWER_SECONDS = 5.0
"""How long a broker may take to say where it is, before it is told that it does not answer."""
ASKED_AT_ONCE_MAX = 32
LAG_SECONDS = 2.0
"""A broker looks for news several times a second. One that has not had all of it for so long lags."""

Row = dict[str, Any]


@click.group()
def cluster() -> None:
    """Look at the cluster as a whole, and upgrade it."""


@cluster.command("status")
@cluster_options
def status(bootstrap: str, as_json: bool) -> None:
    """Show brokers, leases and leaders, and whether each broker has read the whole metadata log.

    POSITION is the entry of the metadata log that a broker's answers are computed from, LEASE the seconds
    since it last renewed its lease.

    \b
    penstock cluster status
    penstock cluster status --json
    """
    with connected(bootstrap) as client:
        found = describe(client)
    if wants_json(as_json):
        import json

        print(json.dumps(found, indent=2))
        return
    rows: list[Row] = found["brokers"]
    level = "" if found["feature_level"] is None else f", feature level {found['feature_level']}"
    click.echo(
        f"Cluster {found['cluster_id']}: {counted(len(rows), 'broker')}, controller {found['controller']}, "
        f"{counted(found['topics'], 'topic')}{level}."
    )
    columns = {
        "broker": "BROKER",
        "address": "ADDRESS",
        "rack": "RACK",
        "state": "STATE",
        "leads": "LEADS",
        "lease_seconds": "LEASE",
        "position": "POSITION",
        "behind": "BEHIND",
    }
    show(rows, columns, as_json=False)
    for problem in found["problems"]:
        click.echo(problem, err=True)
    if not found["problems"]:
        click.echo("Every broker is alive and has read the whole metadata log.")


@cluster.command("upgrade")
@cluster_options
@click.option(
    "--to",
    "wanted",
    type=click.IntRange(0, 2**15 - 1),
    metavar="LEVEL",
    help="The level; the newest one if not given.",
)
@click.option("--dry-run", is_flag=True, help="Only say whether it could be done.")
def upgrade(bootstrap: str, as_json: bool, wanted: int | None, dry_run: bool) -> None:
    """Raise the feature level, once every broker runs the new version.

    Until then the cluster writes only what brokers of the version before can read, so that they can be
    replaced one by one, and brought back. The level never goes back.

    \b
    penstock cluster upgrade
    """
    from penstock.client import AnswerError, ClientError
    from penstock.wire.api.update_features import (
        FeatureUpdateKey,
        UpdateFeaturesRequest,
        UpdateFeaturesResponse,
    )

    with connected(bootstrap) as client:
        connection = client.any()
        before = features(connection)
        if before.level is None:
            raise ClientError("The cluster has no feature level: it is not Penstock, or of an older version.")
        level = before.newest if wanted is None else wanted
        update = FeatureUpdateKey(feature=FEATURE, max_version_level=level)
        request = UpdateFeaturesRequest(feature_updates=[update], validate_only=dry_run)
        answer = connection.ask(request, UpdateFeaturesResponse)
        if answer.error_code:
            raise AnswerError(answer.error_code, "The upgrade", (answer.error_message or "").rstrip("."))
    if wants_json(as_json):
        import json

        print(json.dumps({"before": before.level, "level": level, "dry_run": dry_run}))
    elif level == before.level:
        click.echo(f"The feature level is {level} already.")
    else:
        done = "would be raised" if dry_run else "was raised"
        click.echo(f"The feature level {done} from {before.level} to {level}.")


class Features(NamedTuple):
    level: int | None
    """The level of the cluster; None if it has none."""
    newest: int
    """The newest one that the broker knows."""


def features(connection: Connection) -> Features:
    """What a broker says of the feature level."""
    from penstock.wire.api.api_versions import ApiVersionsRequest, ApiVersionsResponse

    request = ApiVersionsRequest(client_software_name="penstock", client_software_version="1")
    answer = connection.ask(request, ApiVersionsResponse)
    levels = [one.max_version_level for one in answer.finalized_features if one.name == FEATURE]
    newest = [one.max_version for one in answer.supported_features if one.name == FEATURE]
    return Features(levels[0] if levels else None, max(newest, default=0))


def describe(client: Client) -> Row:
    """What the status shows, by name."""
    found = client.metadata()
    led: dict[int, int] = {}
    for topic in found.topics:
        for partition in topic.partitions:
            led[partition.leader_id] = led.get(partition.leader_id, 0) + 1
    rows = _brokers(client)
    for row in rows:
        row["controller"] = row["broker"] == found.controller_id
        row["leads"] = led.get(row["broker"], 0)
    end = _ask_each(rows)
    problems = [sentence for row in rows if (sentence := _problem(row, end))]
    orphans = led.get(-1, 0)
    if orphans:
        problems.append(f"{orphans} partitions have no leader.")
    return {
        "cluster_id": found.cluster_id,
        "controller": found.controller_id,
        "topics": len(found.topics),
        "feature_level": features(client.any()).level,
        "partitions_without_leader": orphans,
        "log_end": end,
        "brokers": rows,
        "problems": problems,
    }


def _brokers(client: Client) -> list[Row]:
    """Live brokers, and fenced ones where the cluster tells of them."""
    from penstock.wire.api.describe_cluster import DescribeClusterRequest, DescribeClusterResponse

    request = DescribeClusterRequest(endpoint_type=1, include_fenced_brokers=True)
    answer = client.any().ask(request, DescribeClusterResponse)
    return [
        {
            "broker": one.broker_id,
            "address": f"{one.host}:{one.port}",
            "rack": one.rack,
            "state": "fenced" if one.is_fenced else "live",
        }
        for one in sorted(answer.brokers, key=lambda broker: broker.broker_id)
    ]


def _ask_each(rows: list[Row]) -> int | None:
    """Ask every live broker where it is. Returns where the log ends, as far as anybody knows."""
    from concurrent.futures import ThreadPoolExecutor

    # All at once: one that does not answer must not make what the others said old.
    with ThreadPoolExecutor(ASKED_AT_ONCE_MAX) as pool:
        answers = list(pool.map(_ask, rows))
    quorums = {row["broker"]: found for row, found in zip(rows, answers, strict=True) if found is not None}
    end = max((quorum.high_watermark for quorum in quorums.values()), default=None)
    # The clock of a broker that answers is the best there is for the leases of those that do not.
    now_ms = max((_of(quorum, broker).last_fetch_timestamp for broker, quorum in quorums.items()), default=-1)
    for row in rows:
        states = [_of(quorum, row["broker"]) for quorum in quorums.values()]
        own = quorums.get(row["broker"])
        state = _of(own, row["broker"]) if own else max(states, key=_said_at, default=None)
        if end is None or state is None or state.log_end_offset < 0:
            continue
        row["position"] = state.log_end_offset
        row["behind"] = max(0, end - state.log_end_offset)
        # What a broker says of its own clock is compared with nothing but its own clock.
        clock_ms = state.last_fetch_timestamp if own else now_ms
        if clock_ms > 0 and state.last_caught_up_timestamp > 0:
            row["caught_up_seconds"] = round((clock_ms - state.last_caught_up_timestamp) / 1000, 1)
        seen = [_said_at(_of(q, row["broker"])) for broker, q in quorums.items() if broker != row["broker"]]
        heard = max(seen, default=_said_at(state))
        if now_ms > 0 and heard > 0:
            row["lease_seconds"] = round(max(0, now_ms - heard) / 1000, 1)
    return end


def _ask(row: Row) -> ResponsePartitionData | None:
    """What one broker says of the metadata log. If it should be alive and says nothing, the row tells."""
    from penstock.client import ClientError, Connection

    row |= {"lease_seconds": None, "position": None, "behind": None, "caught_up_seconds": None}
    if row["state"] != "live":
        return None
    host, _colon, port = row["address"].rpartition(":")
    try:
        with contextlib.closing(Connection(host, int(port), ANSWER_SECONDS, security())) as connection:
            return _quorum(connection)
    except ClientError as error:
        row["state"] = "no answer"
        row["error"] = str(error)
        return None


def _said_at(state: ReplicaState) -> int:
    return state.last_fetch_timestamp


def _quorum(connection: Connection) -> ResponsePartitionData | None:
    """What one broker says about the metadata log; None if it does not serve the question."""
    from penstock.wire.api.describe_quorum import (
        DescribeQuorumRequest,
        DescribeQuorumResponse,
        PartitionData,
        TopicData,
    )

    if not connection.knows(DescribeQuorumRequest.api_key):
        return None
    topic = TopicData(topic_name="__cluster_metadata", partitions=[PartitionData(partition_index=0)])
    answer = connection.ask(
        DescribeQuorumRequest(topics=[topic]), DescribeQuorumResponse, seconds=ANSWER_SECONDS
    )
    return answer.topics[0].partitions[0] if answer.topics and not answer.error_code else None


def _of(quorum: ResponsePartitionData, broker: int) -> ReplicaState:
    from penstock.wire.api.describe_quorum import ReplicaState

    for state in [*quorum.current_voters, *quorum.observers]:
        if state.replica_id == broker:
            return state
    return ReplicaState(replica_id=broker, log_end_offset=-1)


def _problem(row: Row, end: int | None) -> str | None:
    broker = row["broker"]
    if row["state"] == "fenced":
        return f"Broker {broker} is fenced: it was silent for too long, and others lead what it led."
    if row["state"] == "no answer":
        silent = row["lease_seconds"]
        renewed = "" if silent is None else f" It last renewed its lease {silent:.1f} s ago."
        return f"Broker {broker} is in the list and does not answer: {row.pop('error')}{renewed}"
    late = row["caught_up_seconds"]
    if late is not None and late > LAG_SECONDS:
        return (
            f"Broker {broker} lags: it is at entry {row['position']} of {end} and has not read the whole "
            f"metadata log for {late:.1f} s."
        )
    return None
