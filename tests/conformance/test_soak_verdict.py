"""A long run's verdict: what levels off passes, what grows does not, and the store's bound is seen."""

from pathlib import Path

from conformance.soak.samples import Allowance, Sample, judge, stored_sizes, to_csv, to_svg

MB = 1_000_000
ALLOWANCE = Allowance(delete_delay_s=10, unsettled_bytes=5 * MB)


def samples(stored: list[float], readable: float = 30, files: int = 100, rss: int = 100) -> list[Sample]:
    return [
        Sample(10.0 * at, at * MB, int(readable * MB), {"segments": int(size * MB)}, files, 50, rss * MB)
        for at, size in enumerate(stored)
    ]


def test_a_level_run_passes() -> None:
    verdict = judge(samples([10, 40, 60, *[60, 62, 58] * 9]), ALLOWANCE)
    assert verdict.problems == []
    assert verdict.lines[0].startswith("stored_bytes: 60.2 MB in the middle third")


def test_a_store_that_grows_does_not() -> None:
    verdict = judge(samples([float(10 * at) for at in range(30)]), ALLOWANCE)
    assert any("stored_bytes" in problem and "level off" in problem for problem in verdict.problems)


def test_a_store_that_is_level_and_too_large() -> None:
    verdict = judge(samples([200.0] * 30), ALLOWANCE)
    assert len(verdict.problems) == 1 and "x readable" in verdict.problems[0]


def test_small_differences_say_nothing() -> None:
    few = samples([20.0] * 30)
    grown = [
        Sample(s.seconds, s.written_bytes, s.readable_bytes, s.stored, 10 + at, 5 + at, s.rss_bytes)
        for at, s in enumerate(few)
    ]
    assert judge(grown, ALLOWANCE).problems == []


def test_too_few_samples_are_no_verdict() -> None:
    assert judge(samples([10.0] * 5), ALLOWANCE).problems


def test_sizes_by_kind(tmp_path: Path) -> None:
    for name, size in (("wal/1/7/0", 10), ("segments/1/7/a", 20), ("live/1", 3)):
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_bytes(bytes(size))
    sizes, files = stored_sizes(tmp_path)
    assert files == 3
    assert sizes == {"wal": 10, "segments": 20, "manifests": 0, "meta": 0, "other": 3}


def test_the_table_and_the_picture_have_every_sample() -> None:
    found = samples([10.0, 20.0, 30.0])
    assert len(to_csv(found).splitlines()) == 4
    picture = to_svg(found, "a <title>", kills=[10.0])
    assert picture.count("<polyline") == 8 and "a &lt;title&gt;" in picture
