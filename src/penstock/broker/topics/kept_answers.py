"""Encoded answers of Metadata that follow from one image alone, kept until there is another image."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.rights import Permit

if TYPE_CHECKING:
    from penstock.metadata.image import ClusterImage

# What may be kept of encoded answers. Questions come from clients, so their length and number are bounded;
# a cluster of many clients asks for a few dozen different sets of topics.
QUESTION_BYTES_MAX = 4096
ANSWERS_MAX = 256
BYTES_MAX = 16 * 1024 * 1024

Key = tuple[int, str, Permit, bytes]
"""The version, the listener, what may be seen, and the body of a request."""


class KeptAnswers:
    def __init__(self) -> None:
        self._image: ClusterImage | None = None
        self._answers: dict[Key, bytes] = {}
        self._size = 0

    def find(self, image: ClusterImage, key: Key) -> bytes | None:
        return self._answers.get(key) if image is self._image else None

    def keep(self, image: ClusterImage, key: Key, answer: bytes) -> None:
        if image is not self._image:
            self._image, self._answers, self._size = image, {}, 0
        if (
            len(key[-1]) <= QUESTION_BYTES_MAX
            and len(self._answers) < ANSWERS_MAX
            and self._size + len(answer) <= BYTES_MAX
        ):
            self._answers[key] = answer
            self._size += len(answer)
