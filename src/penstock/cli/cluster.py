"""`penstock cluster`: who is in it."""

from __future__ import annotations

import click

from penstock.cli.options import cluster_options, connected
from penstock.cli.output import show, wants_json


@click.group()
def cluster() -> None:
    """Look at the cluster as a whole."""


@cluster.command("status")
@cluster_options
def status(bootstrap: str, as_json: bool) -> None:
    """Show the brokers, and what each of them leads."""
    with connected(bootstrap) as client:
        found = client.metadata()
    led: dict[int, int] = {}
    orphans = 0
    for topic in found.topics:
        for partition in topic.partitions:
            led[partition.leader_id] = led.get(partition.leader_id, 0) + 1
            orphans += partition.leader_id < 0
    rows = [
        {
            "broker": one.node_id,
            "address": f"{one.host}:{one.port}",
            "rack": one.rack,
            "controller": one.node_id == found.controller_id,
            "leads": led.get(one.node_id, 0),
        }
        for one in sorted(found.brokers, key=lambda broker: broker.node_id)
    ]
    if wants_json(as_json):
        import json

        answer = {
            "cluster_id": found.cluster_id,
            "controller": found.controller_id,
            "topics": len(found.topics),
            "partitions_without_leader": orphans,
            "brokers": rows,
        }
        print(json.dumps(answer, indent=2))
        return
    click.echo(f"Cluster {found.cluster_id}: {len(rows)} brokers, {len(found.topics)} topics.")
    columns = {
        "broker": "BROKER",
        "address": "ADDRESS",
        "rack": "RACK",
        "controller": "CONTROLLER",
        "leads": "LEADS",
    }
    show(rows, columns, as_json=False)
    if orphans:
        click.echo(f"{orphans} partitions have no leader.", err=True)
