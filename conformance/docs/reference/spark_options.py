"""docs/spark-options.md: the table of options of `format("penstock")`."""

from penstock.spark.option_table import MOOT, READING, REFUSED, WRITING

_INTRODUCTION = """\
# Options of format("penstock")

Written by `make reference` from the table in `src/penstock/spark/option_table.py`; a test fails while the two differ.

Names are those of Spark's Kafka source where they mean the same. Upper and lower case do not matter. An option that is
not listed is refused, with a hint if it looks like one that is. [Spark](spark.md) shows
them at work.

"""

_REST = """
## How brokers are reached

Options that begin with `kafka.` are settings of Kafka's clients. Those that say how to reach a secured cluster have
their effect (`kafka.security.protocol`, `kafka.sasl.mechanism`, `kafka.sasl.jaas.config`, `kafka.ssl.truststore.location`
and so on). Others are taken and change nothing: there is no Kafka client that they could tune. But these are refused,
because a job that sets them asks for other rows than there would be:

{refused}

## Options that change nothing

Options of Spark's Kafka source about the consumer inside of it. They are taken, so that a job runs when it changes its
format:
"""


def markdown() -> str:
    refused = "".join(f"| `{name}` | {instead} |\n" for name, instead in REFUSED.items())
    rest = _REST.format(refused=f"| option | instead |\n|---|---|\n{refused}".rstrip())
    return (
        f"{_INTRODUCTION}## Reading\n\n{_table(READING)}\n## Writing\n\n{_table(WRITING)}{rest}"
        f"{', '.join(f'`{name}`' for name in MOOT)}.\n"
    )


def _table(rows: dict[str, str]) -> str:
    lines = "".join(f"| `{name}` | {what} |\n" for name, what in rows.items())
    return f"| option | what it does |\n|---|---|\n{lines}"
