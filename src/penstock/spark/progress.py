"""Reports the progress of a streaming query as that of a consumer group.

Commits go to the group's coordinator as from a consumer that assigns its partitions itself (generation -1),
so any tool shows the lag. They are for people: the query goes on from its own checkpoint. So an unreachable
broker never holds up or fails a query. The newest position is sent when a broker can be reached.
"""

import logging
import threading
from collections.abc import Mapping

from penstock.client import AnswerError, Client, ClientError
from penstock.metadata.image import ClusterImage
from penstock.settings.clients import OPEN_CLIENT, ClientSecurity
from penstock.spark.brokers import addresses
from penstock.spark.read.admission import Positions
from penstock.wire.api.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from penstock.wire.api.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from penstock.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

REQUEST_SECONDS = 5.0
FLUSH_SECONDS = 2.0
RETRY_SECONDS = 1.0
# Versions before topic ids took the place of names, and before one request asked for many coordinators:
# every broker speaks them.
COMMIT_VERSION_MAX = 9
FIND_VERSION_MAX = 3

Offsets = Mapping[str, Mapping[int, int]]


class GroupProgress:
    """Commits on a thread of its own, always the newest position."""

    def __init__(self, group: str, bootstrap: str | None, security: ClientSecurity = OPEN_CLIENT) -> None:
        self._group = group
        self._security = security
        self._bootstrap = bootstrap
        self._changed = threading.Condition()
        self._wanted: tuple[str, Offsets] | None = None
        self._busy = False
        self._done: Offsets | None = None
        self._closed = False
        self._client: Client | None = None
        self._warned = False
        self._thread = threading.Thread(target=self._work, name="penstock-progress", daemon=True)
        self._thread.start()

    def report(self, positions: Positions, image: ClusterImage) -> None:
        """Commit these positions soon."""
        bootstrap = self._bootstrap or addresses(image)
        if not bootstrap:
            return  # No broker is alive: the next report finds one.
        offsets = {topic: dict(position.offsets) for topic, position in positions.items()}
        with self._changed:
            if offsets != self._done:
                self._wanted = (bootstrap, offsets)
                self._changed.notify_all()

    def flush(self) -> None:
        """Give a commit that is under way a moment, unless brokers could not be reached lately."""
        with self._changed:
            self._changed.wait_for(lambda: self._idle or self._warned, FLUSH_SECONDS)

    @property
    def _idle(self) -> bool:
        return self._wanted is None and not self._busy

    def close(self) -> None:
        self.flush()
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(FLUSH_SECONDS)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._wanted is not None or self._closed)
                if self._wanted is None:
                    break
                (bootstrap, offsets), self._wanted = self._wanted, None
                self._busy = True
            done = self._try(bootstrap, offsets)
            with self._changed:
                self._busy = False
                if done:
                    self._done = offsets
                elif self._wanted is None and not self._closed:
                    self._wanted = (bootstrap, offsets)
                self._changed.notify_all()
                if not done:
                    self._changed.wait_for(lambda: self._closed, RETRY_SECONDS)
        if self._client is not None:
            self._client.close()

    def _try(self, bootstrap: str, offsets: Offsets) -> bool:
        try:
            if self._client is None:
                self._client = Client(bootstrap, REQUEST_SECONDS, self._security)
            commit(self._client, self._group, offsets)
        except ClientError as error:
            if self._client is not None:
                self._client.close()
                self._client = None
            if not self._warned:
                self._warned = True
                logger.warning("the progress of group %s was not committed: %s", self._group, error)
            return False
        self._warned = False
        return True


def commit(client: Client, group: str, offsets: Offsets) -> None:
    """Commit offsets for a group without members. Raises ClientError."""

    def attempt() -> None:
        found = client.any().ask(
            FindCoordinatorRequest(key=group, key_type=0),
            FindCoordinatorResponse,
            seconds=REQUEST_SECONDS,
            newest=FIND_VERSION_MAX,
        )
        if found.error_code:
            raise AnswerError(found.error_code, f"The question for the coordinator of {group!r}")
        client.metadata([])
        request = OffsetCommitRequest(
            group_id=group,
            topics=[
                OffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        OffsetCommitRequestPartition(partition_index=number, committed_offset=offset)
                        for number, offset in sorted(partitions.items())
                    ],
                )
                for topic, partitions in sorted(offsets.items())
            ],
        )
        answer = client.broker(found.node_id).ask(
            request, OffsetCommitResponse, seconds=REQUEST_SECONDS, newest=COMMIT_VERSION_MAX
        )
        for topic in answer.topics:
            for partition in topic.partitions:
                if partition.error_code not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                    raise AnswerError(partition.error_code, f"The commit for group {group!r}")

    client.retry(attempt)
