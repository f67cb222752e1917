"""`penstock start`: from options to settings to a running broker, or to a supervisor of several."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, TextIO

from penstock.cli.logs import tell
from penstock.cli.start_options import OPTIONS

if TYPE_CHECKING:
    from penstock.cli.secure import Secured
    from penstock.cli.start_options import Values
    from penstock.settings import Settings

LISTEN = "127.0.0.1:9092"
FILES = 1024
"""Descriptors for what is not a connection: write-ahead logs, segments, listeners."""
REPLACED = 3
"""The exit code of a broker that lost its place for good: its id is another process's, it was removed, or the
others wrote what it cannot read."""

BROKERS_MAX = 1000


def say(sentence: str, stream: TextIO) -> None:
    """Print a line in one write. Brokers of one supervisor share its output, and where PYTHONUNBUFFERED is
    set, as in many containers, `print` writes the end of a line by itself: lines would run together."""
    stream.write(f"{sentence}\n")
    stream.flush()


class UsageError(Exception):
    """The options do not make sense together. The message is one sentence."""


def main(values: Values) -> int:
    """Run what the options ask for; the exit code."""
    from penstock.settings import Settings, SettingsError
    from penstock.settings.doors import refuse_open_doors

    try:
        _refuse_repeated(values)
        count = _count(values)
        if count != 1 and "broker_id" in values:
            raise UsageError("--brokers starts brokers 1 to N; --broker-id is for one broker alone.")
        _set_up_logging(values)
        secure = _secured(values) if "secure" in values else None
        made = settings(values) if secure is None else Settings().with_values(secure.values)
        refuse_open_doors(made, made.given)
        if count > 1:
            from penstock.cli.supervisor import supervise

            _check_for_several(made, values)
            _say_where(secure)
            return supervise(values, count)
        return serve(made, values, secure)
    except (UsageError, SettingsError) as error:
        tell(str(error))
        return 2


def _refuse_repeated(values: Values) -> None:
    """One of two files, or of two addresses, would have no effect, and nobody would notice."""
    for option in OPTIONS:
        given = values.get(option.name, ())
        if not option.repeated and len(set(given)) > 1:
            raise UsageError(f"{option.flag} is given more than once: {' and '.join(given)}.")


def settings(values: Values) -> Settings:
    """The settings of one broker: file, then --set, then the options that stand for settings."""
    from penstock.settings import Settings

    return Settings().with_values(_given(values))


def _secured(values: Values) -> Secured:
    """Settings of a broker with --secure, and what must be there for it."""
    from penstock.cli.secure import secured

    if "insecure" in values:
        raise UsageError("--secure and --insecure contradict each other.")
    if "listen" not in values and "listeners" not in _given(values):
        values["listen"] = [LISTEN]
    try:
        return secured(_given(values))
    except OSError as error:
        raise UsageError(f"--secure cannot write {error.filename}: {error.strerror}.") from error


def _given(values: Values) -> dict[str, str]:
    """What was given, by name of the setting and not checked."""
    from penstock.settings.loading import assigned

    on_line = assigned(values.get("set", ()))
    protocol = "SASL_SSL" if "secure" in values else "PLAINTEXT"
    named: dict[str, str] = {}
    for option in OPTIONS:
        value = _one(values, option.name) if option.setting else None
        if value is None:
            continue
        if option.setting in on_line:
            raise UsageError(f"{option.flag} is the setting {option.setting}: give one of the two.")
        if option.metavar == "HOST:PORT":
            value = _address(value, option.flag)
            if option.setting != "http.address":
                value = f"{protocol}://{value}"
        named[option.setting] = value
    # A broker's number is always given, as it is in Kafka.
    return {"broker.id": "1", **_in_file(values), **on_line, **named}


def _in_file(values: Values) -> dict[str, str]:
    path = _one(values, "config")
    if path is None:
        return {}
    from penstock.settings.loading import file_values

    try:
        with open(path, "rb") as file:
            found = file_values(path, file.read())
    except OSError as error:
        raise UsageError(f"The configuration file {path} cannot be read: {error.strerror}.") from error
    if found.left_alone and os.environ.get("PENSTOCK_LIFELINE") is None:
        # A supervised broker's supervisor has said so.
        names = ", ".join(found.left_alone)
        tell(f"left alone, because only Kafka's own parts read them: {names}.")
    return found.values


def _check_for_several(made: Settings, values: Values) -> None:
    """Refuse what would be the same for all brokers and cannot be."""
    shared = ["broker.id"] if made.broker_id != 1 else []
    own = (("listen", "listeners"), ("advertise", "advertised.listeners"), ("http", "http.address"))
    for option, name in own:
        if name in made.given and option not in values:
            shared.append(name)
    if made.store.startswith("memory://"):
        raise UsageError("--brokers cannot share memory://, which is one process's own: give a --store DIR.")
    if shared:
        raise UsageError(
            f"--brokers gives each broker its own {shared[0]}: it cannot be set for all of them."
        )


def _say_where(secure: Secured | None) -> None:
    if secure is not None and os.environ.get("PENSTOCK_LIFELINE") is None:
        say(f"penstock: clients log in with {secure.client_properties}", sys.stdout)


def serve(settings: Settings, values: Values, secure: Secured | None = None) -> int:
    """Run one broker until a signal; the exit code."""
    import asyncio
    import gc
    import signal

    from penstock.node.node import Node, StartError
    from penstock.server.loop import new_event_loop

    _raise_file_limit(settings.max_connections)

    async def run() -> int:
        node = Node(settings, first_users=None if secure is None else secure.users)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, node.stop)
        lifeline = os.environ.get("PENSTOCK_LIFELINE", "")
        if lifeline.isdigit():

            def supervisor_gone() -> None:
                # Nobody would start this broker again, or stop it.
                loop.remove_reader(int(lifeline))
                node.stop()

            loop.add_reader(int(lifeline), supervisor_gone)
        await node.start()
        # The broker makes many short-lived objects and few cycles: look for these rarely, and never among
        # what is there now.
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)
        gc.enable()
        broker = node.broker
        scheme = "https" if settings.http_ssl_keystore_location else "http"
        http = f", {scheme}://{node.http_address}" if node.http_address else ""
        say(
            f"penstock broker {broker.broker_id} is serving on {', '.join(node.addresses)} "
            f"(cluster {broker.image.cluster_id}, store {settings.store}{http})",
            sys.stdout,
        )
        _say_where(secure)
        reason = await node.run()
        if reason is not None:
            tell(reason)
            return REPLACED
        return 0

    loop = new_event_loop()
    try:
        return loop.run_until_complete(run())
    except StartError as error:
        tell(str(error))
        return 1
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def _raise_file_limit(connections: int) -> None:
    """Let the process have a descriptor per connection, and some for files, as far as the system allows."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + FILES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _one(values: Values, name: str) -> str | None:
    given = values.get(name)
    return given[0] if given else None


def _count(values: Values) -> int:
    text = _one(values, "brokers")
    if text is None:
        return 1
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= BROKERS_MAX):
        raise UsageError(f"--brokers takes a number from 1 to {BROKERS_MAX}, not {text!r}.")
    return int(text)


def _address(text: str, flag: str) -> str:
    host, colon, port = text.rpartition(":")
    if not (colon and port.isascii() and port.isdigit() and int(port) < 65536):
        raise UsageError(f"{flag} takes HOST:PORT, with a port up to 65535, not {text!r}.")
    return f"{host}:{port}"


def _set_up_logging(values: Values) -> None:
    from penstock.cli import logs

    level = (_one(values, "log_level") or "warning").lower()
    if level not in logs.LEVELS:
        raise UsageError("--log-level is one of debug, info, warning, error.")
    form = (_one(values, "log_format") or "text").lower()
    if form not in logs.FORMATS:
        raise UsageError("--log-format is one of text, json.")
    logs.set_up(level, form)
