"""`/topics`: all topics, found by name, a page of them at a time."""

from __future__ import annotations

from starlette.responses import Response

from penstock.console.visit import Visit, page

PAGE = 50
SORTS = {
    "name": lambda topic: topic.name or "",
    "partitions": lambda topic: len(topic.partitions),
    "replicas": lambda topic: max((len(one.replica_nodes) for one in topic.partitions), default=0),
}


@page("/topics")
def topics(visit: Visit) -> Response:
    wanted = visit.query("find").lower()
    internal = visit.query("internal") == "1"
    sort = visit.query("sort") if visit.query("sort") in SORTS else "name"
    down = visit.query("down") == "1"
    found = [
        topic
        for topic in visit.cluster.metadata().topics
        if topic.name and wanted in topic.name.lower() and (internal or not topic.is_internal)
    ]
    found.sort(key=SORTS["name"])
    if sort != "name" or down:
        found.sort(key=SORTS[sort], reverse=down)
    pages = max(1, -(-len(found) // PAGE))
    number = visit.number("page", 1, 1, pages)
    return visit.render(
        "topics.html",
        topics=found[(number - 1) * PAGE : number * PAGE],
        count=len(found),
        pages=pages,
        number=number,
        sort=sort,
        down=down,
        internal=internal,
    )
