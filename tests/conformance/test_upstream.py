"""What the proof with libraries' own tests reads in a Go test's output and changes in Sarama's source."""

from pathlib import Path

from conformance.upstream.go import complaint, verdicts
from conformance.upstream.sarama import moved

OUTPUT = """=== RUN   TestReads
=== RUN   TestReads/snappy
    reads_test.go:261:\x20
        \tError Trace:\t/source/reads_test.go:211
        \tError:      \tReceived unexpected error:
        \t            \tread |0: file already closed
        \tTest:       \tTestReads/snappy
=== RUN   TestOthers
    others_test.go:9: not of that test
--- FAIL: TestReads (1.00s)
"""


def test_a_complaint_has_the_place_and_what_was_seen() -> None:
    assert complaint(OUTPUT, "TestReads") == (
        "reads_test.go:261: | Error: Received unexpected error: | read |0: file already closed"
    )
    assert complaint(OUTPUT, "TestOthers") == "others_test.go:9: not of that test"
    assert complaint(OUTPUT, "TestNothing") == "see its output"


SUITE = """--- FAIL: TestIntegration (2.50s)
    --- PASS: TestIntegration/TestReads (1.00s)
        --- PASS: TestIntegration/TestReads/snappy (0.50s)
    --- FAIL: TestIntegration/TestWrites (1.50s)
--- SKIP: TestOthers (0.00s)
"""


def test_tests_are_told_from_their_parts_and_those_of_a_suite_by_its_name() -> None:
    assert verdicts(SUITE) == [("FAIL", "TestIntegration"), ("SKIP", "TestOthers")]
    assert verdicts(SUITE, "TestIntegration/") == [("PASS", "TestReads"), ("FAIL", "TestWrites")]


def test_saramas_source_finds_its_brokers_and_tools_here() -> None:
    text = '29090+i "kafka-1:9091" "/opt/kafka-%s/bin/x.sh" env.UsingExisting = usingExisting'
    assert moved(text, 21_001, "127.0.0.1:25000", Path("/here")) == (
        '21000+i "127.0.0.1:25000" "/here/kafka-%s/bin/x.sh" env.UsingExisting = false'
    )
