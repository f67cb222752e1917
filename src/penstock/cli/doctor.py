"""`penstock doctor`: do all brokers say the same, and can every client work with them?"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import click

from penstock.admin.doctor.check_up import check_up
from penstock.admin.doctor.checks import CHECKS, Finding
from penstock.admin.doctor.questions import ANSWER_SECONDS, Address, text
from penstock.admin.groups import delete_group
from penstock.admin.records import ReaderPositions, Sender
from penstock.admin.topics import create, delete
from penstock.cli.client import Client, ClientError, Connection
from penstock.cli.group_member import GroupMember
from penstock.cli.options import cluster_options, connected, security
from penstock.cli.output import counted, wants_json
from penstock.wire.api.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from penstock.wire.batch import Record

KNOWN_SECONDS = 5.0
"""How long other brokers may take to know a new topic."""
TRIAL = "records go through a new topic and a new group"


@click.command()
@cluster_options
@click.option(
    "--write", is_flag=True, help="Also create a topic, write and read it as a group, and delete it again."
)
def doctor(bootstrap: str, as_json: bool, write: bool) -> None:
    """Check a cluster, Penstock's or any other, for the contradictions that clients stumble over.

    Every broker that any broker names is asked the same questions, and the answers are compared: who is
    there, who leads, who coordinates, who is the controller. Transactions that hang are found, and last
    stable offsets that do not move on though they should. Ends with 1 if something is wrong.

    \b
    penstock doctor --bootstrap broker-1:9092
    penstock doctor --write --json
    """
    brokers, found = check_up(bootstrap, security())
    checks = list(CHECKS)
    if write:
        checks.append(TRIAL)
        found += [Finding(TRIAL, problem) for problem in trial(brokers)]
    _report(checks, found, brokers, wants_json(as_json))
    if found:
        raise SystemExit(1)


def trial(brokers: Sequence[Address]) -> Iterator[str]:
    """Do through each broker what a new application does first."""
    for broker in brokers:
        name = f"penstock-doctor-{uuid.uuid4().hex}"
        try:
            with connected(text(broker)) as client:
                create(client, name, partitions=len(brokers))
                try:
                    yield from _unknown_elsewhere(name, brokers)
                    yield from _round_trip(client, name, len(brokers))
                finally:
                    delete(client, [name])
        except ClientError as error:
            yield f"With {text(broker)} as the only bootstrap address: {error}"


def _unknown_elsewhere(name: str, brokers: Sequence[Address]) -> Iterator[str]:
    deadline = time.monotonic() + KNOWN_SECONDS
    left = list(brokers)
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
    while left and time.monotonic() < deadline:
        left = [broker for broker in left if not _knows(broker, request)]
    for broker in left:
        seconds = f"{KNOWN_SECONDS:.0f} s"
        yield f"The broker at {text(broker)} does not know a topic {seconds} after it was created."


def _knows(broker: Address, request: MetadataRequest) -> bool:
    connection = Connection(*broker, ANSWER_SECONDS, security())
    try:
        answer = connection.ask(request, MetadataResponse, seconds=ANSWER_SECONDS)
    finally:
        connection.close()
    brokers = {one.node_id for one in answer.brokers}
    return any(
        not topic.error_code and all(one.leader_id in brokers for one in topic.partitions)
        for topic in answer.topics
    )


def _round_trip(client: Client, topic: str, partitions: int) -> Iterator[str]:
    sent = [f"{number}".encode() for number in range(partitions)]
    sender = Sender(client, topic, list(range(partitions)), codec=0, acks=-1)
    now_ms = int(time.time() * 1000)
    for number, value in enumerate(sent):
        sender.send(Record(0, now_ms, None, value), number)
    sender.flush()
    member = GroupMember(client, topic, topic)
    given = member.join()
    if given != list(range(partitions)):
        yield f"The only member of a new group was given partitions {given} of {partitions}."
    reader = ReaderPositions(client, topic, given, "beginning", committed=True)
    read = []
    for found in reader.records(follow=False):
        if found is not None:
            partition, record = found
            read.append(bytes(record.value or b""))
            member.handed_on(partition, record.offset)
    if sorted(read) != sorted(sent):
        yield f"{len(sent)} records were acknowledged, and {len(read)} were read back."
    member.commit()
    resumed = member.resume_at()
    if resumed != dict.fromkeys(given, 1):
        yield f"A group that committed 1 for each of {len(given)} partitions was told {resumed}."
    member.leave()
    delete_group(client, topic)


def _report(
    checks: Sequence[str], found: Sequence[Finding], brokers: Sequence[Address], as_json: bool
) -> None:
    problems: dict[str, list[str]] = {check: [] for check in checks}
    for finding in found:
        problems[finding.check].append(finding.problem)
    if as_json:
        import json

        rows: list[dict[str, Any]] = [
            {"check": check, "ok": not wrong, "problems": wrong} for check, wrong in problems.items()
        ]
        print(json.dumps({"brokers": [text(one) for one in brokers], "checks": rows}, indent=2))
        return
    click.echo(f"Asked {counted(len(brokers), 'broker')}: {', '.join(text(one) for one in brokers)}.")
    for check, wrong in problems.items():
        click.echo(f"{click.style('wrong', fg='red') if wrong else click.style('ok', fg='green')}\t{check}")
        for problem in wrong:
            click.echo(f"\t  {problem}")
