"""ApiVersions, DescribeCluster."""

from collections.abc import Iterator

from conformance.differential.scenario import Draw, Step, scenario


@scenario("ApiVersions")
def versions_plain(draw: Draw, version: int) -> Iterator[Step]:
    yield Step({"ClientSoftwareName": "conformance", "ClientSoftwareVersion": "1.0"})


@scenario("ApiVersions")
def versions_bad_software(draw: Draw, version: int) -> Iterator[Step]:
    if version >= 3:
        for name, release in (("", ""), ("bad name!", "1"), ("conformance", "-1-"), ("-", "1")):
            yield Step(
                {"ClientSoftwareName": name, "ClientSoftwareVersion": release}, note=f"{name!r} {release!r}"
            )


@scenario("DescribeCluster")
def describe_cluster(draw: Draw, version: int) -> Iterator[Step]:
    yield Step({})
    yield Step({"IncludeClusterAuthorizedOperations": True})
    if version >= 1:
        yield Step({"EndpointType": 2}, note="controllers")
        yield Step({"EndpointType": 9}, note="no such type")
    if version >= 2:
        yield Step({"IncludeFencedBrokers": True})
