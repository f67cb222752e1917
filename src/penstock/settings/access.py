"""The settings of access rules and delegation tokens."""

from penstock.settings.checks import at_least, one_of
from penstock.settings.groups import GroupSettings
from penstock.settings.setting import Kind, Rows, Setting, SettingsError

BOOLEAN, STRING, LONG, PASSWORD, CLASS = Kind.BOOLEAN, Kind.STRING, Kind.LONG, Kind.PASSWORD, Kind.CLASS

STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"

row = Rows("cluster", "read-only")


class AccessSettings(GroupSettings, frozen=True, kw_only=True):
    """The part of a broker's settings that says who decides on access."""

    row.section("Access rules")

    authorizer_class_name: str = row(
        CLASS,
        "",
        f"Who decides on access: {STANDARD_AUTHORIZER}, by the access rules of the cluster; empty: everybody "
        "may do everything.",
        one_of("", STANDARD_AUTHORIZER),
    )
    super_users: str = row(
        STRING,
        "",
        "Principals that may do everything, separated by semicolons: User:admin;User:CN=broker,O=us.",
        ours=True,
    )
    allow_everyone_if_no_acl_found: bool = row(
        BOOLEAN, False, "Whether a resource that no access rule is for is open to everybody.", ours=True
    )
    delegation_token_secret_key: str | None = row(
        PASSWORD,
        None,
        "The key from which delegation tokens are made, the same on all brokers; empty: there are none.",
    )
    delegation_token_max_lifetime_ms: int = row(
        LONG, 604800000, "The longest life of a delegation token, however often it is renewed.", at_least(1)
    )
    delegation_token_expiry_time_ms: int = row(
        LONG, 86400000, "How long a delegation token lives until it is renewed.", at_least(1)
    )
    delegation_token_expiry_check_interval_ms: int = row(
        LONG, 3600000, "How often delegation tokens that expired are removed.", at_least(1)
    )

    def validate_access(self) -> None:
        """Raise SettingsError for half a setting."""
        for name in self.super_users.split(";"):
            kind, _, rest = name.strip().partition(":")
            if name.strip() and not (kind == "User" and rest):
                raise SettingsError(
                    f"super.users holds {name.strip()!r}, which is not a principal such as User:admin."
                )
            if ",User:" in name.replace(" ", ""):
                raise SettingsError(
                    "super.users separates principals by semicolons, because names may hold commas: "
                    "User:admin;User:broker."
                )
        if not self.authorizer_class_name and (self.super_users or self.allow_everyone_if_no_acl_found):
            what = "super.users" if self.super_users else "allow.everyone.if.no.acl.found"
            raise SettingsError(
                f"{what} means nothing while everybody may do everything: set authorizer.class.name="
                f"{STANDARD_AUTHORIZER}."
            )


ACCESS_SETTINGS: dict[str, Setting] = row.named(AccessSettings)
