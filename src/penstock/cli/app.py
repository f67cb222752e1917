"""The commands, all but the quick way through `start`."""

from __future__ import annotations

import sys
from typing import Any

import click

from penstock import __version__
from penstock.cli import (
    acls,
    bench,
    cluster,
    completion,
    config,
    console,
    consume,
    copy,
    doctor,
    groups,
    pipeline,
    records,
    settings,
    store,
    store_health,
    top,
    topics,
    transactions,
    users,
)
from penstock.cli.client import ClientError
from penstock.cli.entry import INTERRUPTED
from penstock.cli.start_options import OPTIONS

SENTENCE_MAX = 300
PLACES = ("FILE", "DIR_OR_URL")
"""What options call names of files."""


class App(click.Group):
    """Turns what went wrong into one sentence and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ClientError as error:
            raise click.ClickException(str(error)) from error
        except UnicodeEncodeError as error:
            # Which text it is stays unsaid, since it may be a password.
            raise click.ClickException("A name or a password that was given is not UTF-8.") from error
        except BrokenPipeError:
            # Whoever read our output has had enough of it.
            sys.stderr.close()
            raise SystemExit(0) from None
        except KeyboardInterrupt:
            raise SystemExit(INTERRUPTED) from None


@click.group(cls=App, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="penstock")
def app() -> None:
    """An event log that speaks the Kafka protocol. Any Kafka client can use it.

    \b
    Exit codes: 0  it was done
                1  it could not be done, or something is wrong with what was looked at; a sentence says what
                2  the command, an option or a setting is not right; store scrub and repair: something could
                   not be read
                3  start: the broker lost its place for good. Its id is another's, or it was removed
                130  Ctrl-C ended it
    """


def _start_command() -> click.Command:
    """`start`, for its help and for what the quick parser did not understand."""

    def run(**given: Any) -> None:
        from penstock.cli.start import main

        values = {
            name: list(value) if isinstance(value, tuple) else ["true" if value is True else value]
            for name, value in given.items()
            if value not in (None, (), False)
        }
        raise SystemExit(main(values))

    return click.Command(
        "start",
        callback=run,
        params=[
            click.Option(
                [option.flag, option.name],
                metavar=option.metavar or None,
                help=option.help,
                multiple=option.repeated,
                is_flag=option.is_flag,
            )
            for option in OPTIONS
        ],
        help=(
            "Run a broker, or several as one cluster.\n\n"
            "Processes with the same store are one cluster, on one machine or on many. When a broker "
            "accepts and serves it prints one line that says so. SIGTERM drains and leaves; what was "
            "acknowledged survives a kill at any moment. `penstock settings` lists what --set and --config "
            "take.\n\n"
            "\b\n"
            "penstock start\n"
            "penstock start --brokers 3 --http 127.0.0.1:8080\n"
            "penstock start --broker-id 7 --listen broker7:9092 --secure --store s3://bucket/prefix"
        ),
    )


app.add_command(_start_command())
topics.topics.add_command(copy.copy)
app.add_command(topics.topics)
app.add_command(top.top)
app.add_command(groups.groups)
app.add_command(transactions.transactions)
app.add_command(records.produce)
app.add_command(consume.consume)
app.add_command(cluster.cluster)
app.add_command(completion.completion)
app.add_command(config.config)
app.add_command(console.console)
app.add_command(doctor.doctor)
app.add_command(bench.bench)
store.store.add_command(store_health.scrub)
store.store.add_command(store_health.repair)
app.add_command(store.store)
app.add_command(users.users)
app.add_command(acls.acls)
app.add_command(pipeline.pipeline)
app.add_command(settings.settings)


def _finish(group: click.Group) -> None:
    """Lists of commands have the whole first sentence about each, where Click would cut it short. Shells
    complete the names of files where an option takes one."""
    for command in group.commands.values():
        command.short_help = command.get_short_help_str(SENTENCE_MAX)
        for option in command.params:
            if option.metavar in PLACES and option.type is click.STRING:
                option.type = click.Path(readable=False)
        if isinstance(command, click.Group):
            _finish(command)


_finish(app)
