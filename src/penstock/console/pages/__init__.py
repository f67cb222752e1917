"""The pages of the console, one module each. What the menu shows stands here, in its order."""

MODULES = (
    "login",
    "overview",
    "brokers",
    "topics",
    "topic",
    "records",
    "groups",
    "transactions",
    "access",
    "pipelines",
    "doctor",
    "store",
)
MENU = (
    ("Overview", "/"),
    ("Brokers", "/brokers"),
    ("Topics", "/topics"),
    ("Groups", "/groups"),
    ("Transactions", "/transactions"),
    ("Access", "/access"),
    ("Pipelines", "/pipelines"),
    ("Doctor", "/doctor"),
    ("Store", "/store"),
)
