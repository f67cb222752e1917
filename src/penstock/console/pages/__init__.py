"""The pages of the console, one module each. What the menu shows stands here, in its order."""

MODULES = ("login", "overview", "brokers", "topics", "groups")
MENU = (
    ("Overview", "/"),
    ("Brokers", "/brokers"),
    ("Topics", "/topics"),
    ("Groups", "/groups"),
)
