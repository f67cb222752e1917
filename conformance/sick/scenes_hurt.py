"""One file of a rich store is hurt, in every way: nothing is lost in silence, and healed all is whole.

Damage in a write-ahead log is played in `scenes_rot`: what it held is said to be lost, and healing comes too late.
"""

import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from conformance.server import ServerFailed
from conformance.sick.hurts import Hurt, hurts_of
from conformance.sick.rich import Rich, RichStage, rich_store
from conformance.sick.stage import Failed, scene
from penstock.client import ClientError
from penstock.testing.waiting import until

KINDS = ("meta/cluster", "meta/log/*", "meta/snapshot/*", "live/*", "segments/*/*/*", "manifests/*/*/*")
LOGS = "wal/*/*/0*"
AT_ONCE = 3
HEALED_S = 40.0
SHORT = ("cut to half", "an older one")


def _start(rich: RichStage) -> bool:
    """Whether it serves. A broker that does not says why in a sentence."""
    try:
        rich.stage.cluster.start()
    except ServerFailed as why:
        said = str(why).splitlines()
        if "Traceback" in str(why) or len(said) < 2:
            raise Failed(f"no sentence at the start: {str(why)[-300:]}") from None
        return False
    return True


def _is_whole(rich: RichStage) -> bool:
    try:
        rich.judge(whole=True)
    except (Failed, ClientError):
        return False
    return True


def _play(rich: RichStage, hurt: Hurt, kept: Path) -> None:
    store = rich.stage.objects
    hurt.apply(store, kept)
    if _start(rich):
        rich.judge(whole=False, within_s=4)
        rich.write_on()
        hurt.heal(store, kept)
    else:
        hurt.heal(store, kept)
        if not _start(rich):
            raise Failed("it was healed, and does not start")
    until(lambda: _is_whole(rich), HEALED_S, "wholeness after it was healed")
    rich.go_on()
    if rich.stage.said("traceback"):
        raise Failed("a broker logged a traceback")


def _case(remains: Rich, hurt: Hurt) -> str:
    """What is wrong, if something is."""
    with remains.copied() as rich, tempfile.TemporaryDirectory() as kept:
        try:
            _play(rich, hurt, Path(kept))
        except Exception as why:
            return f"[{hurt.name}] {str(why) or repr(why)}"[:300]
    return ""


def _chosen(store: Path) -> Iterator[Hurt]:
    """Everything that can happen to the newest file of each kind."""
    for kind in KINDS:
        yield from hurts_of(store, max(path for path in store.glob(kind) if path.is_file()))
    yield from hurts_of(store, max(path for path in store.glob(LOGS) if path.is_file()), damaged=False)


def _all(remains: Rich, hurts: Iterable[Hurt]) -> str:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        results = list(pool.map(lambda hurt: _case(remains, hurt), hurts))
    wrong = [one for one in results if one]
    if wrong:
        raise Failed(f"{len(wrong)} of {len(results)}: " + " ".join(wrong))
    return f"{len(results)} cases, none lost in silence, all whole when healed"


@scene()
def one_file_of_a_rich_store_hurt() -> str:
    """The newest file of each kind is cut, emptied, flipped, replaced by an older one, swapped, doubled, or a
    directory: records, transactions, offsets of groups and producer ids are as clients know them, or said to be
    hurt. Brought back while the broker runs, all is whole."""
    with rich_store() as remains:
        return _all(remains, _chosen(remains.store))


@scene(short=True)
def some_files_of_a_rich_store_hurt() -> str:
    """A few of these."""
    with rich_store() as remains:
        kinds = ("meta/log/", "manifests/")
        chosen = [
            hurt for hurt in _chosen(remains.store) if hurt.what in SHORT and hurt.path.startswith(kinds)
        ]
        return _all(remains, chosen)
