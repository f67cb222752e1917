"""Plans for emptying objects that are mostly dead: what is stored stays bounded, and little is copied."""

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.log.manifest import SegmentRef
from penstock.log.moving import Sparse, choose, footprint, is_sparse, stretches, worth_moving

MB = 1024 * 1024


class Shelf:
    """Objects with pieces that die one by one."""

    def __init__(self) -> None:
        self.pieces: dict[str, dict[int, int]] = {}
        self.sizes: dict[str, int] = {}
        self.moved = self.died = 0
        self._names = iter(range(10**9))

    def add(self, sizes: list[int]) -> None:
        key = str(next(self._names))
        self.pieces[key] = {next(self._names): size for size in sizes}
        self.sizes[key] = sum(sizes)

    def kill(self, number: int) -> None:
        alive = [(key, piece) for key, pieces in self.pieces.items() for piece in pieces]
        if alive:
            key, piece = alive[number % len(alive)]
            self.died += self.pieces[key].pop(piece)
            if not self.pieces[key]:
                del self.pieces[key], self.sizes[key]

    @property
    def live(self) -> int:
        return sum(sum(pieces.values()) for pieces in self.pieces.values())

    def move(self) -> None:
        while True:
            live = {key: sum(pieces.values()) for key, pieces in self.pieces.items()}
            found = [
                Sparse(key, key, live[key], size)
                for key, size in self.sizes.items()
                if is_sparse(live[key], size)
            ]
            if not worth_moving(found, self.live):
                return
            kept: list[int] = []
            for one in choose(found, 4 * MB):
                kept += self.pieces.pop(one.key).values()
                del self.sizes[one.key]
                self.moved += one.live_bytes
            self.add(kept)


@given(
    st.lists(
        st.one_of(
            st.lists(st.integers(1, MB), min_size=1, max_size=8),
            st.integers(0, 10**6),
        ),
        max_size=120,
    )
)
@settings(derandomize=True, max_examples=150)
def test_what_is_stored_is_bounded_and_a_dead_byte_pays_for_a_copied_one(
    steps: list[list[int] | int],
) -> None:
    shelf = Shelf()
    for step in steps:
        if isinstance(step, int):
            shelf.kill(step)
        else:
            shelf.add(step)
        shelf.move()
        assert sum(shelf.sizes.values()) <= (2 + 1 / 8) * shelf.live + MB + 1
        assert shelf.moved <= shelf.died


def test_an_object_of_unknown_size_is_not_called_dead() -> None:
    assert is_sparse(49, 99) and not is_sparse(50, 100) and not is_sparse(0, -1)


def test_neighbours_are_moved_together() -> None:
    def segment(base: int, key: str, time: int = 0) -> SegmentRef:
        return SegmentRef(key, base, base + 1, 100, time, key, 0, 12, time, time)

    keys = ["a", "a", "b", "a", "a", "a", "c", "a"]
    segments = [segment(at, key) for at, key in enumerate(keys)]

    def plan(*wanted: str, clean_end: int = 0, bytes_max: int = 1000, span_ms_max: int = 10) -> list[range]:
        return stretches(segments, wanted, clean_end=clean_end, bytes_max=bytes_max, span_ms_max=span_ms_max)

    assert plan("a") == [range(2), range(3, 6), range(7, 8)]
    assert plan("a", "b", "c") == [range(8)]
    assert plan("x") == []
    # What is compacted stays apart, and segments stay as small as they have to be.
    assert plan("a", clean_end=4) == [range(2), range(3, 4), range(4, 6), range(7, 8)]
    assert plan("a", "b", bytes_max=250) == [range(2), range(2, 4), range(4, 6), range(7, 8)]
    segments = [segment(at, "a", at * 4) for at in range(5)]
    assert plan("a") == [range(3), range(3, 5)]
    assert footprint(segments[0]) > 112


def test_which_objects_are_emptied_first_does_not_hang_on_how_they_are_told() -> None:
    alike = [Sparse(key, key, 10, 100) for key in ("b", "c", "a")]
    assert [one.key for one in choose(alike, 20)] == ["a", "b"]
