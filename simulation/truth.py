"""The real contents of the store: read without a broker, and damaged without asking one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.log.manifest import Manifest, ManifestError, decode_manifest
from penstock.log.moving import footprint
from penstock.log.segment import MAGIC
from penstock.metadata.image import ClusterImage, ManifestRef, PartitionKey
from penstock.storage.settling.segment_writer import INDEX_SUFFIX
from simulation.tempo import WORTH_BYTES

if TYPE_CHECKING:
    from simulation.scene import Scene

ROTTEN = ("segments/", "manifests/", "wal/")
"""Where bits rot at rest. What a rotten entry of the metadata log does is for people to decide."""


GROUP = b"group-"
"""In the name of each group."""
SPARE_BYTES = 3 * WORTH_BYTES
"""Each broker leaves a little."""
SMALL = 16
"""Seals and markers."""


class Truth:
    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._rotten: set[str] = set()

    @property
    def on_directory(self) -> bool:
        return self._scene.kind in ("os", "fsync")

    def objects(self) -> dict[str, bytes]:
        """All that is stored, without what is unfinished."""
        if self.on_directory:
            return {
                key: bytes(node.data)
                for key, node in self._scene.disk.stored()
                if not key.startswith(("tmp/", "presence/", "reserve"))
            }
        return dict(self._scene.shared.memory.objects)

    def get(self, key: str) -> bytes | None:
        if self._scene.elsewhere is not None and key.startswith("meta/"):
            return self._scene.elsewhere.get(key)
        if self.on_directory:
            path = self._scene.disk.path(key)
            return bytes(self._scene.disk.find(path).data) if self._scene.disk.has(path) else None
        return self._scene.shared.memory.objects.get(key)

    def manifest(self, ref: ManifestRef) -> Manifest | None:
        """None if it is not there, or cannot be read."""
        stored = self.get(ref.key)
        if stored is None:
            return None
        try:
            return decode_manifest(stored[ref.start : ref.start + ref.length])
        except ManifestError:
            return None

    def manifests(self, image: ClusterImage) -> Iterator[tuple[PartitionKey, ManifestRef, Manifest | None]]:
        for topic in image.topics.values():
            for index, info in enumerate(topic.partitions):
                if info.manifest is not None:
                    yield (topic.id, index), info.manifest, self.manifest(info.manifest)

    def settled(self, image: ClusterImage) -> dict[PartitionKey, int]:
        """Up to where each partition is settled."""
        return {
            key: manifest.end_offset for key, _ref, manifest in self.manifests(image) if manifest is not None
        }

    def missing(self, image: ClusterImage) -> list[str]:
        """What the image needs and is not there."""
        stored = self.objects()
        found = []
        for key, ref, manifest in self.manifests(image):
            if manifest is None:
                found.append(f"the manifest {ref.key} of {key[0][:4].hex()}-{key[1]}")
                continue
            for segment in manifest.segments:
                for name in (segment.key, segment.index_key):
                    if name not in stored:
                        found.append(f"{name}, which {ref.key} needs for {key[0][:4].hex()}-{key[1]}")
        return found

    def space(self, image: ClusterImage) -> str:
        """What is stored of segments and manifests and should not be: "" if all is in order."""
        needed: set[str] = set()
        live = 0
        for _key, ref, manifest in self.manifests(image):
            needed.add(ref.key)
            for segment in manifest.segments if manifest is not None else ():
                needed.update((segment.key, segment.index_key))
                live += footprint(segment)
        stored = {
            key: len(data)
            for key, data in self.objects().items()
            if key.startswith(("segments/", "manifests/"))
        }
        # What a rotten object describes is not known, so that it stays; nothing else does for its sake.
        orphans = sorted(key for key in stored if key not in needed and _bare(key) not in self._rotten)
        if orphans:
            return f"{len(orphans)} objects are stored that nothing needs: {orphans[:3]}"
        segments = sum(size for key, size in stored.items() if key.startswith("segments/"))
        if segments > 2 * live + SPARE_BYTES and not self._rotten:
            return f"{segments} bytes of segments are stored, of which {live} are alive"
        return ""

    @property
    def only_segments_rot(self) -> bool:
        """Whether something is damaged, and all of it are objects that are segments."""
        return (
            bool(self._rotten)
            and not self.on_directory
            and all(name.startswith("segments/") for name in self._rotten)
        )

    def owners(self, image: ClusterImage, name: str) -> set[PartitionKey]:
        """The partitions that need an object."""
        found = set()
        for key, ref, manifest in self.manifests(image):
            if ref.key == name or (
                manifest is not None and any(name in (one.key, one.index_key) for one in manifest.segments)
            ):
                found.add(key)
        return found

    def choose(self, rng: random.Random, image: ClusterImage) -> str | None:
        """An object that may be hurt: one of users' records, and of nothing else."""
        wanted = rng.choice(ROTTEN)
        groups = {topic.id for name, topic in image.topics.items() if name.startswith("__")}
        fit = [
            key
            for key, data in sorted(self.objects().items())
            if key.startswith(wanted) and len(data) > SMALL and GROUP not in data
        ]
        while fit:
            name = fit.pop(rng.randrange(len(fit)))
            owners = self.owners(image, name)
            if (owners or wanted == "wal/") and not any(topic in groups for topic, _index in owners):
                return name
        return None

    def choose_footer(self, rng: random.Random) -> str | None:
        """An object that says at its end what it holds."""
        fit = [
            key
            for key, data in sorted(self.objects().items())
            if key.startswith("segments/") and data.endswith(MAGIC)
        ]
        return rng.choice(fit) if fit else None

    def rot(self, name: str, rng: random.Random, last: int | None = None) -> None:
        """Flip one bit of an object, or of its last bytes."""
        data = self.get(name)
        assert data
        self._rotten.add(_bare(name))
        at, bit = rng.randrange(len(data) - last if last else 0, len(data)), rng.randrange(8)
        if self.on_directory:
            self._scene.disk.find(self._scene.disk.path(name)).rot(at, bit)
        else:
            self._scene.shared.rot(name, at, bit)
        self._scene.trace.note("faults", f"bit {bit} of byte {at} of {name} rots")


def _bare(key: str) -> str:
    """An index goes by the name of its data."""
    return key.removesuffix(INDEX_SUFFIX)
