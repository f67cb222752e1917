"""Spark's own Kafka connector, from Maven Central: the peer of format("penstock").

The newest connector that is published is of Spark 4.2.0, its token provider of 4.0.0; together with the Kafka
client that the connector was built for they run on pyspark 4.2 and 4.3.
"""

import shutil
import subprocess

from conformance import parts

CONNECTOR = "4.2.0"
TOKEN_PROVIDER = "4.0.0"
KAFKA_CLIENTS = "3.9.2"
COMMONS_POOL = "2.13.1"
FETCH_TIMEOUT_S = 600

_NO_DEPENDENCIES = (
    "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
)
"""Everything else is in Spark already, in the versions that it wants."""
_ARTIFACTS = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", CONNECTOR),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", TOKEN_PROVIDER),
    ("org.apache.kafka", "kafka-clients", KAFKA_CLIENTS),
    ("org.apache.commons", "commons-pool2", COMMONS_POOL),
)


def connector_jars() -> str:
    """What `spark.jars` takes."""
    home = parts.PARTS / f"spark-kafka-{CONNECTOR}"
    jars = home / "jars"
    wanted = [jars / f"{name}-{version}.jar" for _group, name, version in _ARTIFACTS]
    if not all(jar.exists() for jar in wanted):
        home.mkdir(parents=True, exist_ok=True)
        dependencies = "".join(
            f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version>"
            f"{_NO_DEPENDENCIES}</dependency>"
            for group, name, version in _ARTIFACTS
        )
        (home / "pom.xml").write_text(
            "<project><modelVersion>4.0.0</modelVersion><groupId>conformance</groupId><artifactId>spark-kafka</artifactId>"
            f"<version>1</version><dependencies>{dependencies}</dependencies></project>"
        )
        _fetch(["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={jars}"], str(home))
    missing = [jar.name for jar in wanted if not jar.exists()]
    if missing:
        raise parts.PartMissing(f"Maven did not bring {', '.join(missing)}.")
    return ",".join(str(jar) for jar in wanted)


def _fetch(command: list[str], where: str) -> None:
    what = f"Spark's Kafka connector {CONNECTOR}"
    if shutil.which(command[0]) is None:
        raise parts.PartMissing(f"{what} cannot be had: {command[0]} is not on the PATH.")
    try:
        done = subprocess.run(
            command, cwd=where, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise parts.PartMissing(
            f"{what} cannot be had: {command[0]} took more than {FETCH_TIMEOUT_S} s."
        ) from None
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise parts.PartMissing(f"{what} cannot be had: {'; '.join(line.strip() for line in last[-3:])}")


if __name__ == "__main__":
    print(connector_jars())
