"""A topic of the simulated world, as its clients know it."""

import msgspec


class Topic(msgspec.Struct):
    name: str
    partitions: int
    id: bytes = b""
