"""The partition of an internal topic that a key, such as a group, belongs to. It is computed with Java's
String.hashCode, as Kafka does.
"""

from functools import lru_cache


def java_hash(text: str) -> int:
    """String.hashCode: over UTF-16 code units, in signed 32-bit arithmetic."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


@lru_cache(maxsize=8192)  # Every heartbeat asks, for the same groups.
def partition_of(key: str, partition_count: int) -> int:
    # Kafka's Utils.abs maps the one value that has no positive twin to zero.
    value = java_hash(key)
    return (0 if value == -0x8000_0000 else abs(value)) % partition_count
