"""What a URL says of an object store: where it is, and how it is reached."""

import os
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from obstore.store import from_url

from penstock.storage.stores.objects import StoreError
from penstock.storage.stores.patience import LARGE_SECONDS
from penstock.storage.stores.remote_errors import explain

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Backend

_CONNECT_SECONDS = 3
_IDLE_SECONDS = 15
"""A connection that nobody used for longer is likely to lead nowhere by now."""
_S3 = {"endpoint": "endpoint", "region": "region", "path_style": "path_style"}
_AZURE = {"account": "account_name", "endpoint": "endpoint"}
_SETTINGS: dict[str, dict[str, str]] = {
    "s3": _S3,
    "s3a": _S3,
    "gs": {},
    "az": _AZURE,
    "azure": _AZURE,
    "adl": _AZURE,
    "abfs": _AZURE,
    "abfss": _AZURE,
}
"""By scheme, what a URL may set, and what the SDK calls it."""


def open_backend(url: str) -> "Backend":
    plain, config = _settings_in(url)
    options: Any = {
        "timeout": f"{LARGE_SECONDS:.0f}s",
        "connect_timeout": f"{_CONNECT_SECONDS}s",
        "pool_idle_timeout": f"{_IDLE_SECONDS}s",
    }
    # Options given here hide the environment's, so what it says about plain HTTP is passed on.
    endpoint = (
        config.get("endpoint")
        or os.environ.get("AWS_ENDPOINT_URL_S3")
        or os.environ.get("AWS_ENDPOINT_URL", "")
    )
    if endpoint.startswith("http://") or os.environ.get("AWS_ALLOW_HTTP", "").lower() == "true":
        options["allow_http"] = True
    given: Any = config or None
    try:
        return from_url(plain, config=given, retry_config={"max_retries": 0}, client_options=options)
    except Exception as error:
        raise StoreError(f"{url!r} is not a store: {explain(error).reason}") from error


def _settings_in(url: str) -> tuple[str, dict[str, str]]:
    """The URL without its query, and what the query sets: an endpoint and a region, for instance, which
    everybody who is told the store needs to know. Secrets come from the environment alone."""
    plain, _, query = url.partition("?")
    scheme = plain.partition("://")[0]
    known = _SETTINGS.get(scheme)
    if known is None:
        raise StoreError(f"{url!r} is not a store: use a directory, s3://, gs:// or az://")
    config = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in known:
            possible = ", ".join(known) or "nothing"
            raise StoreError(f"{url!r} sets {name!r}; what can be set there is {possible}")
        config[known[name]] = value
    if "path_style" in config:
        style = config.pop("path_style").lower()
        if style not in ("true", "false"):
            raise StoreError(f"{url!r}: path_style is true or false")
        config["virtual_hosted_style_request"] = "false" if style == "true" else "true"
    return plain, config
