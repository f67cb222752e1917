"""One text for one address, however it is written.

Rules, limits and quotas name addresses, and so do sockets. The same IPv6 address has many texts: Java writes
`0:0:0:0:0:0:0:1`, Linux `::1`. A socket that serves both families calls an IPv4 peer `::ffff:10.0.0.1`.
Whoever compares texts lets a denied address in under another one, so both sides are brought to one text.
"""

from __future__ import annotations


def canonical(host: str) -> str:
    """The text of an address that all its texts have in common. A name stays as it is."""
    if ":" not in host:
        return host
    from ipaddress import IPv6Address

    try:
        address = IPv6Address(host)
    except ValueError:
        return host
    return str(address.ipv4_mapped or address)
