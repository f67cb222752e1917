"""Runs transcripts of one partition: what was appended, line by line, and what the log said.

    append [n=RECORDS] [p=PRODUCER/EPOCH seq=SEQUENCE] [txn [guard=NAME]] [t=TIMESTAMP] [at=MS]
    ask NAME p=PRODUCER/EPOCH seq=SEQUENCE [begins]     the coordinator is asked, behind a guard of this name
    deny NAME [again]   the coordinator does not allow it; `again`: the producer is told to try again
    commit p=PRODUCER/EPOCH c=COORDINATOR [own]     abort p=... c=... [own]
    undo COUNT          takes back the last so many lines that were accepted
    publish             everything staged is durable
    expire MS           producers silent for so long are forgotten
    start OFFSET        records below are gone
    lead EPOCH          a new leader epoch begins
    epoch EPOCH         where it ended
    aborted START END   the aborted transactions that touch these offsets
    stable              the last stable offset
    show                the state

Each line of the transcript is followed by its answer after `->`.
"""

from penstock.log.guards import NOT_ASKED, Guard, GuardedBatch
from penstock.log.markers import Marker, MarkerBatch, MarkerKind
from penstock.log.partition import Duplicate, PartitionLog, Undo
from penstock.wire.batch import Record, build_batch, check_batch
from penstock.wire.errors import ErrorCode


class Transcript:
    def __init__(self) -> None:
        self.log = PartitionLog(0)
        self.log.lead()
        self.now_ms = 0
        self._staged: list[tuple[int, list[Undo]]] = []
        self._guards: dict[str, tuple[int, Guard]] = {}
        """By name: a producer and its guard."""

    def run(self, text: str) -> str:
        lines = []
        for line in text.splitlines():
            command = line.split("->")[0].strip()
            if not command or command.startswith("#"):
                lines.append(line)
                continue
            lines.append(f"{command:<52} -> {self._answer(command)}")
        return "\n".join(lines) + "\n"

    def _answer(self, command: str) -> str:
        verb, *words = command.split()
        options = dict(word.split("=") for word in words if "=" in word)
        flags = {word for word in words if "=" not in word}
        self.now_ms = int(options.get("at", self.now_ms))
        match verb:
            case "append":
                return self._append(options, "txn" in flags)
            case "commit" | "abort":
                producer, epoch = map(int, options["p"].split("/"))
                marker = Marker(
                    MarkerKind.COMMIT if verb == "commit" else MarkerKind.ABORT, int(options["c"])
                )
                own = "own" in flags
                return self._stage(MarkerBatch.of(marker, producer, epoch, self.now_ms, has_own_epoch=own))
            case "ask":
                producer, epoch = map(int, options["p"].split("/"))
                sequence = int(options["seq"])
                guard = self.log.guards.begin(producer, epoch, sequence, begins_epoch="begins" in flags)
                self._guards[words[0]] = producer, guard
                return f"from sequence {guard.lowest_sequence}"
            case "deny":
                self.log.guards.fail(*self._guards[words[0]])
                return f"{len(self.log.guards)} guards"
            case "undo":
                for _ in range(int(words[0])):
                    self.log.undo(*self._staged.pop())
                return f"next {self.log.next_offset}"
            case "publish":
                self.log.publish(self.log.next_offset, self.log.staged_stable_offset)
                self._staged.clear()
                return f"high watermark {self.log.high_watermark} stable {self.log.last_stable_offset}"
            case "expire":
                return f"{self.log.expire_producers(self.now_ms, int(words[0]))} gone"
            case "start":
                self.log.advance_log_start(int(words[0]))
                return f"epochs {list(self.log.epochs)}"
            case "lead":
                self.log.leader_epoch = int(words[0])
                self.log.lead()
                return f"epochs {list(self.log.epochs)}"
            case "epoch":
                return "epoch {} ended at {}".format(*self.log.end_of_epoch(int(words[0])))
            case "aborted":
                found = self.log.aborted_transactions(int(words[0]), int(words[1]))
                return " ".join(f"{t.producer_id}:{t.first_offset}-{t.last_offset}" for t in found) or "none"
            case "stable":
                return f"stable {self.log.last_stable_offset}"
            case "show":
                return self._show()
        raise AssertionError(command)

    def _append(self, options: dict[str, str], transactional: bool) -> str:
        producer, epoch = map(int, options.get("p", "-1/-1").split("/"))
        time = int(options.get("t", self.now_ms))
        count = int(options.get("n", 1))
        made = build_batch(
            [Record(at, time, None, b"v") for at in range(count)],
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=int(options.get("seq", -1)),
            transactional=transactional,
        )
        if transactional:
            name = options.get("guard")
            made = GuardedBatch.of(made, NOT_ASKED if name is None else self._guards[name][1])
        return self._stage(made)

    def _stage(self, made: bytearray) -> str:
        undo: list[Undo] = []
        before = self.log.next_offset
        verdict = self.log.stage(made, self.now_ms, undo)
        match verdict:
            case Duplicate():
                return f"duplicate of {verdict.base_offset}"
            case ErrorCode():
                assert self.log.next_offset == before and not undo
                return verdict.name
            case (base, last, _, _):
                header = check_batch(made)
                assert (header.base_offset, header.leader_epoch) == (base, self.log.leader_epoch)
                assert header.last_offset == last
                self._staged.append((before, undo))
                return f"at {base}"

    def _show(self) -> str:
        log = self.log
        producers = " ".join(
            f"{producer}/{entry.epoch}@{entry.last_sequence}"
            for producer, entry in log.producer_entries.items()
        )
        return f"next {log.next_offset} stable {log.staged_stable_offset} producers [{producers}]"
