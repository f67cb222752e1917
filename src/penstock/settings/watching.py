"""The settings by which a broker can be watched: its HTTP port, the console, metrics and traces."""

from penstock.settings.checks import WEB_ADDRESS, at_least
from penstock.settings.listening import ListeningSettings
from penstock.settings.setting import Kind, Rows, Setting

BOOLEAN, STRING, INT = Kind.BOOLEAN, Kind.STRING, Kind.INT

row = Rows("broker", "read-only")


class WatchingSettings(ListeningSettings, frozen=True, kw_only=True):
    """The part of a broker's settings for those who look at it."""

    row.section("Metrics and health")

    http_address: str = row(
        STRING,
        "",
        "The address of the HTTP port, HOST:PORT, with the console, /metrics and /health (`--http`); port 0 "
        "takes a free one; empty: there is none.",
        ours=True,
    )
    http_max_connections: int = row(
        INT, 256, "Connections to the HTTP port at once; further ones are closed.", at_least(1), ours=True
    )
    http_ssl_keystore_location: str = row(
        STRING,
        "",
        "A PEM file with the key and the certificates of the HTTP port, which then speaks https. A changed "
        "file is taken up for new connections.",
        ours=True,
    )
    http_names: str = row(
        STRING,
        "",
        "Names by which browsers reach the console, comma-separated, beside addresses and localhost: other "
        "sites cannot use it under a name of theirs.",
        ours=True,
    )
    console_enable: bool = row(BOOLEAN, True, "Serve the console on the HTTP port.", ours=True)
    console_registry_url: str = row(
        STRING,
        "",
        "The URL of a schema registry, by which the console shows Avro and Protobuf.",
        WEB_ADDRESS,
        ours=True,
        place=True,
    )
    otel_exporter_otlp_endpoint: str = row(
        STRING,
        "",
        "Where spans of produce, fetch and settle are sent: the URL of an OpenTelemetry collector that takes "
        "OTLP over HTTP, such as http://127.0.0.1:4318; empty: nowhere. Needs penstock[otel].",
        WEB_ADDRESS,
        ours=True,
        place=True,
    )
    metrics_token_file: str = row(
        STRING,
        "",
        "A file with a token that /metrics asks for, as a bearer token or as the password of any name; with "
        "more than one line each is good. A changed file holds at once. Empty: whoever reaches the HTTP port "
        "may read them. `--secure` makes one where others can reach it.",
        ours=True,
    )
    metrics_topics_max: int = row(
        INT,
        100,
        "Topics whose traffic has metrics of its own, the first that have any; the others share one.",
        at_least(0),
        ours=True,
    )
    metrics_groups_max: int = row(
        INT,
        100,
        "Groups whose lag has a metric of its own, those with the most; the others are summed.",
        at_least(0),
        ours=True,
    )


WATCHING_SETTINGS: dict[str, Setting] = row.named(WatchingSettings)
