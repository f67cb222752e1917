"""The console on a secured cluster, and on Apache Kafka."""

from confluent_kafka import Producer
from playwright.sync_api import Page, expect

from conformance import parts
from conformance.console.chromium import Chromium, axe, witness_of
from conformance.console.place import Served, commit, create, produce
from conformance.oracle import ApacheKafka
from conformance.security.stage import PASSWORD, USER, Stage, stage
from penstock.admin.rules import add_rules
from penstock.admin.users import ITERATIONS, MECHANISMS, add_user
from penstock.client import Client
from penstock.metadata.access import AccessRule
from penstock.security.words import Operation, Pattern, Permission, Resource
from penstock.settings.clients import client_security

READER, SECRET = "rita", "only-a-reader"
OPEN, CLOSED = "menu", "salaries"

Outcome = tuple[list[str], str]


def few_rights(browser: Chromium) -> Outcome:
    """Rita may read one topic. She sees that one, and is told in words of what she may not do."""
    problems: list[str] = []
    with stage() as secured:
        _furnish(secured)
        file = secured.folder / "console.properties"
        file.write_text(_without_user(secured))
        with (
            Served("--bootstrap", secured.naked, "--command-config", str(file)) as console,
            browser.page(console.address) as page,
        ):
            try:
                _visit(page)
            except AssertionError as wrong:
                problems += str(wrong).splitlines()[:6]
            problems += [f"/login: {one}" for one in axe(page, parts.axe())]
    return (
        problems,
        f"{READER} sees {OPEN} and not {CLOSED}, and changes neither; who has no password sees nothing",
    )


def _visit(page: Page) -> None:
    page.goto("/topics")
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    with witness_of(page).expects(401):
        log_in(page, READER, "wrong")
        expect(page.get_by_role("alert")).to_contain_text("The login failed")
    log_in(page, READER, SECRET)
    expect(page.get_by_role("link", name=OPEN, exact=True)).to_be_visible()
    expect(page.get_by_role("link", name=CLOSED, exact=True)).to_have_count(0)
    with witness_of(page).expects(400, 403, 404):
        page.goto(f"/topics/{CLOSED}")
        expect(page.get_by_role("alert")).to_contain_text("TOPIC_AUTHORIZATION_FAILED")
        page.goto(f"/topics/{OPEN}/records")
        expect(page.locator("#records tbody")).to_contain_text("soup")
        page.get_by_text("Write a record").click()
        page.get_by_label("Value", exact=True).fill("hemlock")
        page.get_by_role("button", name="Write", exact=True).click()
        expect(page.get_by_role("alert")).to_contain_text("TOPIC_AUTHORIZATION_FAILED")
        page.goto("/access")
        expect(page.get_by_text("You may not see the rules of this cluster.")).to_be_visible()
        expect(page.get_by_text("You may not see the users of this cluster.")).to_be_visible()
        page.goto("/store")
        expect(page.get_by_role("alert")).to_contain_text("AUTHORIZATION_FAILED")
        page.goto("/groups")
        expect(page.get_by_text("No group has joined or committed yet.")).to_be_visible()
        page.goto("/groups/payroll")
        expect(page.get_by_role("alert")).to_contain_text("GROUP_AUTHORIZATION_FAILED")
    page.goto("/")
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()


def log_in(page: Page, user: str, password: str) -> None:
    page.get_by_label("Name").fill(user)
    page.get_by_label("Password").fill(password)
    page.get_by_label("Password").press("Enter")


def _furnish(secured: Stage) -> None:
    own = client_security(secured.own_properties("PLAIN"))
    with Client(secured.login, 10.0, own) as client:
        add_user(client, READER, MECHANISMS, SECRET, ITERATIONS)
        add_rules(client, [_rule(Operation.READ), _rule(Operation.DESCRIBE)])
    settings = {
        "bootstrap.servers": secured.naked,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": USER,
        "sasl.password": PASSWORD,
    }
    producer = Producer(settings)
    for topic in (OPEN, CLOSED):
        producer.produce(topic, b"soup", b"monday")
    if producer.flush(30):
        raise AssertionError("the secured broker took no records")


def _rule(operation: Operation) -> AccessRule:
    return AccessRule(
        Resource.TOPIC, OPEN, Pattern.LITERAL, f"User:{READER}", "*", operation, Permission.ALLOW
    )


def _without_user(secured: Stage) -> str:
    del secured
    return "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\n"


def apache_kafka(browser: Chromium) -> Outcome:
    """The same console for Kafka itself."""
    problems: list[str] = []
    with ApacheKafka() as kafka:
        client = {"bootstrap.servers": kafka.bootstrap}
        create(kafka.bootstrap, ["orders"], 2)
        produce(client, "orders", 1000)
        commit(client, "billing", "orders", [1, 1])
        with Served("--bootstrap", kafka.bootstrap) as console, browser.page(console.address) as page:
            try:
                _look_around(page)
            except AssertionError as wrong:
                problems += str(wrong).splitlines()[:6]
            script = parts.axe()
            for path in ("/", "/topics/orders", "/groups/billing", "/store"):
                page.goto(path)
                problems += [f"{path}: {one}" for one in axe(page, script)]
    return problems, "topics, groups, a reset with preview, transactions, access and the doctor"


def _look_around(page: Page) -> None:
    page.goto("/topics")
    expect(page.get_by_role("link", name="orders", exact=True)).to_be_visible()
    page.goto("/groups")
    page.get_by_role("link", name="billing", exact=True).click()
    expect(page.get_by_text("998 records behind the end")).to_be_visible()
    page.get_by_role("link", name="Move offsets").click()
    page.get_by_label("Where to").select_option("latest")
    page.get_by_role("button", name="Preview").click()
    page.get_by_role("button", name="Move the offsets").click()
    expect(page.get_by_text("0 records behind the end")).to_be_visible()
    page.goto("/transactions")
    expect(page.get_by_text("No producer has a transactional id.")).to_be_visible()
    page.goto("/access")
    expect(page.get_by_text("This cluster has no access rules")).to_be_visible()
    page.goto("/store")
    expect(page.get_by_text("This page looks at the store of a Penstock cluster")).to_be_visible()
    page.goto("/doctor")
    page.get_by_role("button", name="Check now").click()
    expect(page.get_by_role("status")).to_contain_text("All checks are well.", timeout=60_000)
