"""The console at a broker's own HTTP port: open to everybody, and with a login over https.

The broker is one that a user would start: `penstock start --http`, the second time with `--secure`.
"""

import shutil
import ssl
import tempfile
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from playwright.sync_api import Page, expect

from conformance.cluster.processes import Member, penstock
from conformance.console import records
from conformance.console.chromium import Chromium
from conformance.console.elsewhere import log_in
from conformance.console.place import GROUP, ORDERS, PAGES, PARTITIONS, START_SECONDS, commit, produce
from conformance.console.scenes import require
from conformance.server import free_port
from penstock.settings.properties import parse_properties

RECORDS = 20_000
WAYS: dict[str, tuple[str, ...]] = {
    "own port, open": (),
    "own port, with a login over https": ("--secure",),
}


class BrokersPort:
    """One broker, with records and a group. With `--secure` its HTTP port is one that others can reach, too."""

    def __init__(self, *options: str) -> None:
        self.records = RECORDS
        self._secure = "--secure" in options
        self._folder = Path(tempfile.mkdtemp(prefix="console-port-"))
        store = self._folder / "store"
        self._security = store / "security"
        listen, self._http = free_port(), free_port()
        self.address = f"{'https' if self._secure else 'http'}://127.0.0.1:{self._http}"
        http = f"{'0.0.0.0' if self._secure else '127.0.0.1'}:{self._http}"
        where = ["--listen", f"127.0.0.1:{listen}", "--http", http, "--store", str(store)]
        self._broker = Member(1, listen, [penstock(), "start", *where, *options], self._folder / "broker.log")

    @property
    def client(self) -> Mapping[str, str]:
        if self._secure:
            return parse_properties((self._security / "librdkafka.properties").read_text())
        return {"bootstrap.servers": self._broker.address}

    def enter(self, page: Page) -> None:
        page.goto("/topics")
        if not self._secure:
            return
        expect(page.get_by_role("heading", name="Log in")).to_be_visible()
        expect(page.get_by_role("link", name=ORDERS, exact=True)).to_have_count(0)
        users = parse_properties((self._security / "users.properties").read_text())
        log_in(page, "admin", users["admin"])
        expect(page.get_by_role("link", name=ORDERS, exact=True)).to_be_visible()

    def vouched_for(self) -> str:
        """Whether the authority of `--secure` vouches for the port; ssl.SSLError if not. Chromium does not look."""
        trust = ssl.create_default_context(cafile=str(self._security / "ca.pem")) if self._secure else None
        with urllib.request.urlopen(f"{self.address}/health/ready", timeout=30, context=trust) as answer:
            require(answer.status == 200, f"/health/ready is {answer.status}")
        return "its certificate is good, " if self._secure else ""

    def __enter__(self) -> Self:
        try:
            self._broker.start()
            admin = AdminClient(dict(self.client))
            for one in admin.create_topics([NewTopic(ORDERS, PARTITIONS)]).values():
                one.result(START_SECONDS)
            produce(self.client, ORDERS, self.records)
            commit(self.client, GROUP, ORDERS, [10] * PARTITIONS)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._broker.kill()
        shutil.rmtree(self._folder, ignore_errors=True)


def see_pages(place: BrokersPort, chromium: Chromium) -> str:
    """Every page, and the store, which only a broker's own console finds by itself."""
    vouched = place.vouched_for()
    with chromium.page(place.address) as page:
        place.enter(page)
        for path in PAGES:
            answer = page.goto(path)
            require(
                answer is not None and answer.status == 200, f"{path} is answered {answer and answer.status}"
            )
            expect(page.get_by_role("heading", level=1)).to_be_visible()
        page.goto("/store")
        page.get_by_role("button", name="Look now").click()
        expect(page.get_by_role("status")).to_contain_text(
            "Everything that the cluster needs is there.", timeout=90_000
        )
    return f"{vouched}{len(PAGES)} pages, and the store has what the cluster needs"


SCENES: dict[str, Callable[[BrokersPort, Chromium], str]] = {
    "see all pages": see_pages,
    "follow a tail": records.follow_a_tail,
    "search a record by key": records.search_by_key,
}
