"""`penstock topics`: list, create, describe, alter, tail, delete; `copy` is in a module of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from penstock.admin.topics import SET, UNSET, add_partitions, alter_configs, create, delete_each
from penstock.cli.client import AnswerError, Client, ClientError
from penstock.cli.options import PARTITIONS, cluster_options, connected, record_options
from penstock.cli.output import counted, say, show, wants_json
from penstock.wire.api.create_topics import CreatableTopicConfig
from penstock.wire.api.incremental_alter_configs import AlterableConfig
from penstock.wire.api.metadata import MetadataResponseTopic
from penstock.wire.errors import ErrorCode
from penstock.wire.uuids import uuid_text


@click.group()
def topics() -> None:
    """Look at topics; create, alter, copy and delete them."""


@topics.command("list")
@cluster_options
@click.option("--internal", is_flag=True, help="Show internal topics too.")
def list_topics(bootstrap: str, as_json: bool, internal: bool) -> None:
    """List the topics of the cluster.

    \b
    penstock topics list
    penstock topics list --internal --json
    """
    with connected(bootstrap) as client:
        found = sorted(client.metadata().topics, key=lambda topic: topic.name or "")
    rows = [
        {
            "name": topic.name,
            "partitions": len(topic.partitions),
            "replicas": max((len(one.replica_nodes) for one in topic.partitions), default=0),
            "id": uuid_text(topic.topic_id),
        }
        for topic in found
        if internal or not topic.is_internal
    ]
    columns = {"name": "TOPIC", "partitions": "PARTITIONS", "replicas": "REPLICAS", "id": "ID"}
    show(rows, columns, as_json=wants_json(as_json))


@topics.command("create")
@cluster_options
@click.argument("name")
@click.option(
    "--partitions",
    type=click.IntRange(-1, 2**31 - 1),
    default=-1,
    help="How many; the broker's default if not given.",
)
@click.option(
    "--replicas", type=click.IntRange(-1, 2**15 - 1), default=-1, help="Length of the failover order."
)
@click.option("--config", "configs", metavar="NAME=VALUE", multiple=True, help="A setting of the topic.")
def create_topic(
    bootstrap: str, as_json: bool, name: str, partitions: int, replicas: int, configs: tuple[str, ...]
) -> None:
    """Create a topic.

    \b
    penstock topics create orders --partitions 6 --config retention.ms=86400000
    """
    settings = _configs(configs)
    with connected(bootstrap) as client:
        result = create(client, name, partitions=partitions, replicas=replicas, configs=settings)
        count = result.num_partitions if result.num_partitions > 0 else len(client.partitions(name))
    fields = {"created": name, "partitions": count, "id": uuid_text(result.topic_id)}
    say(f"Created topic {name} with {counted(count, 'partition')}.", fields, as_json=wants_json(as_json))


@topics.command("delete")
@cluster_options
@click.argument("names", nargs=-1, required=True)
def delete_topics(bootstrap: str, as_json: bool, names: tuple[str, ...]) -> None:
    """Delete topics and everything in them.

    \b
    penstock topics delete orders shipments
    """
    with connected(bootstrap) as client:
        refused = delete_each(client, names)
    deleted = [name for name in names if name not in refused]
    if deleted:
        sentence = f"Deleted topic{'s' if len(deleted) > 1 else ''} {', '.join(deleted)}."
        say(sentence, {"deleted": deleted}, as_json=wants_json(as_json))
    if refused:
        raise ClientError(" ".join(str(error) for error in refused.values()))


@topics.command("alter")
@cluster_options
@click.argument("name")
@click.option("--partitions", type=PARTITIONS, help="Raise the number of partitions to so many.")
@click.option("--config", "configs", metavar="NAME=VALUE", multiple=True, help="Set a setting of the topic.")
@click.option("--unset", "unset", metavar="NAME", multiple=True, help="Give a setting its default again.")
@click.option("--dry-run", is_flag=True, help="Ask the cluster whether it would, and change nothing.")
def alter_topic(
    bootstrap: str,
    as_json: bool,
    name: str,
    partitions: int | None,
    configs: tuple[str, ...],
    unset: tuple[str, ...],
    dry_run: bool,
) -> None:
    """Change the number of partitions of a topic, or its settings.

    \b
    penstock topics alter orders --partitions 12
    penstock topics alter orders --config retention.ms=86400000 --unset cleanup.policy
    """
    if partitions is None and not configs and not unset:
        raise click.UsageError("Say what to change: --partitions, --config or --unset.")
    changes = [
        AlterableConfig(name=one.name, config_operation=SET, value=one.value) for one in _configs(configs)
    ]
    changes += [AlterableConfig(name=one, config_operation=UNSET, value=None) for one in unset]
    with connected(bootstrap) as client:
        client.partitions(name)
        if unset:
            _require_settings(client, name, unset)
        if changes:
            if partitions is not None:
                # A refusal of the second change comes before the first one is made.
                add_partitions(client, name, partitions, True)
            alter_configs(client, name, changes, dry_run)
        if partitions is not None:
            add_partitions(client, name, partitions, dry_run)
    fields = {
        "altered": name,
        "partitions": partitions,
        "set": dict(text.partition("=")[::2] for text in configs),
        "unset": list(unset),
        "dry_run": dry_run,
    }
    say(f"{'Would alter' if dry_run else 'Altered'} topic {name}.", fields, as_json=wants_json(as_json))


@topics.command("tail")
@record_options
@click.argument("name")
@click.option("--lines", "-n", type=click.IntRange(min=0), default=10, show_default=True,
              help="How many of the last records of each partition to begin with.")  # fmt: skip
@click.option("--max", "most", type=click.IntRange(min=0), help="Stop after so many records.")
@click.pass_context
def tail_topic(
    context: click.Context, bootstrap: str, as_json: bool, name: str, lines: int, most: int | None
) -> None:
    """Print the last records of a topic, and new ones as they come: `penstock consume` from the end.

    \b
    penstock topics tail orders -n 20
    """
    from penstock.cli.consume import consume

    start = f"-{lines}" if lines else "end"
    context.invoke(
        consume, bootstrap=bootstrap, as_json=as_json, topic=name, start=start, follow=True, most=most
    )


@topics.command("describe")
@cluster_options
@click.argument("name")
@click.option("--settings", is_flag=True, help="Show its settings instead, and where each comes from.")
def describe_topic(bootstrap: str, as_json: bool, name: str, settings: bool) -> None:
    """Show the partitions of a topic: leaders, offsets, failover order.

    \b
    penstock topics describe orders
    penstock topics describe orders --settings
    """
    if settings:
        _show_settings(bootstrap, name, as_json=wants_json(as_json))
        return
    with connected(bootstrap) as client:
        (topic,) = client.metadata([name]).topics
        if topic.error_code:
            told = "there is none" if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else None
            raise AnswerError(topic.error_code, f"The question for topic {name!r}", told)
        rows = _partition_rows(client, topic)
    columns = {
        "partition": "PARTITION",
        "leader": "LEADER",
        "leader_epoch": "EPOCH",
        "replicas": "REPLICAS",
        "isr": "ALIVE",
        "start_offset": "START",
        "end_offset": "END",
    }
    show(rows, columns, as_json=wants_json(as_json))


def _show_settings(bootstrap: str, name: str, *, as_json: bool) -> None:
    from penstock.admin.configs import TOPIC, describe_configs

    with connected(bootstrap) as client:
        found = describe_configs(client, TOPIC, name)
    rows = [{"name": one.name, "value": one.value, "source": one.source} for one in found]
    show(rows, {"name": "SETTING", "value": "VALUE", "source": "WHERE FROM"}, as_json=as_json)


def _require_settings(client: Client, name: str, settings: Sequence[str]) -> None:
    """What was never set is taken back without a word, so a cluster would not tell of a wrong name."""
    from penstock.admin.configs import TOPIC, describe_configs

    known = {one.name for one in describe_configs(client, TOPIC, name)}
    for one in settings:
        if one not in known:
            raise ClientError(f"Topics have no setting {one!r}: nothing was changed.")


def _partition_rows(client: Client, topic: MetadataResponseTopic) -> list[dict[str, Any]]:
    from penstock.admin.offsets import EARLIEST, LATEST, list_offset

    rows = []
    name = topic.name or ""
    for one in sorted(topic.partitions, key=lambda partition: partition.partition_index):
        start: int | None = None
        end: int | None = None
        try:
            start = list_offset(client, name, one.partition_index, EARLIEST)
            end = list_offset(client, name, one.partition_index, LATEST)
        except ClientError as error:
            click.echo(f"Partition {one.partition_index} does not answer: {error}", err=True)
        rows.append(
            {
                "partition": one.partition_index,
                "leader": one.leader_id,
                "leader_epoch": one.leader_epoch,
                "replicas": one.replica_nodes,
                "isr": one.isr_nodes,
                "start_offset": start,
                "end_offset": end,
            }
        )
    return rows


def _configs(texts: Sequence[str]) -> list[CreatableTopicConfig]:
    found = {one.name: one for one in map(_config, texts)}
    if len(found) < len(texts):
        raise click.UsageError("--config names a setting twice.")
    return list(found.values())


def _config(text: str) -> CreatableTopicConfig:
    name, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError(f"--config takes NAME=VALUE, not {text!r}.")
    return CreatableTopicConfig(name=name, value=value)
