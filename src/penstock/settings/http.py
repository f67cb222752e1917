"""The address of the HTTP port, as it is written in settings."""

from penstock.settings.setting import SettingsError


def parse_http_address(text: str) -> tuple[str, int]:
    """Host and port from HOST:PORT. An IPv6 address stands in brackets."""
    host, colon, port = text.rpartition(":")
    if not (colon and port.isascii() and port.isdigit() and int(port) < 65536):
        raise SettingsError(f"http.address is HOST:PORT, not {text!r}.")
    return host.removeprefix("[").removesuffix("]"), int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens there. A name is not looked up."""
    parts = host.split(".")
    return host.lower() in ("localhost", "::1") or (
        len(parts) == 4 and parts[0] == "127" and all(part.isascii() and part.isdigit() for part in parts)
    )
