"""Decides on the wishes of all local callers that wait: in turn, each on an image with the effect of those
before it. All that was decided becomes one entry of the metadata log.
"""

import asyncio
from collections.abc import Iterable

from penstock.metadata.apply import perform
from penstock.metadata.commands import AnyCommand
from penstock.metadata.draft import Draft
from penstock.metadata.image import ClusterImage
from penstock.metadata.preconditions import check
from penstock.metadata.proposing import Decide
from penstock.metadata.refusal import Refusal


class Proposal:
    """A wish, and who waits for what becomes of it."""

    __slots__ = ("_result", "decide")

    def __init__(self, decide: Decide, result: "asyncio.Future[ClusterImage | Refusal]") -> None:
        self.decide = decide
        self._result = result

    @property
    def is_answered(self) -> bool:
        return self._result.done()

    def answer(self, answer: ClusterImage | Refusal) -> None:
        if not self._result.done():
            self._result.set_result(answer)

    def fail(self, error: Exception) -> None:
        if not self._result.done():
            self._result.set_exception(error)


class DraftEntry:
    """An entry that is not written yet: its commands, the image right after it, and whom to tell."""

    __slots__ = ("_accepted", "_refused", "commands", "image")

    def __init__(self, image: ClusterImage) -> None:
        self.image = image
        self.commands: list[AnyCommand] = []
        self._accepted: list[Proposal] = []
        self._refused: list[tuple[Proposal, Refusal]] = []

    def accept(self, proposal: Proposal, commands: Iterable[AnyCommand]) -> None:
        self._accepted.append(proposal)
        self.commands.extend(commands)

    def refuse(self, proposal: Proposal, refusal: Refusal) -> None:
        self._refused.append((proposal, refusal))

    def answer(self) -> None:
        """It is written: tell everybody."""
        for proposal in self._accepted:
            proposal.answer(self.image)
        for proposal, refusal in self._refused:
            proposal.answer(refusal)


def decide_all(image: ClusterImage, proposals: Iterable[Proposal]) -> DraftEntry:
    """What is to be written after `image`. A wish whose decision fails is told so, and has no effect."""
    draft = Draft(image)
    draft.version += 1
    entry = DraftEntry(image)
    for proposal in proposals:
        before = draft.image()
        try:
            wish = proposal.decide(before if entry.commands else image)
            refusal = wish if isinstance(wish, Refusal) else None
            commands = () if isinstance(wish, Refusal) else wish
            for command in commands:
                refusal = check(draft.view(), command)
                if refusal is not None:
                    break
                perform(draft, command)
        except Exception as error:
            proposal.fail(error)
            draft = Draft(before)
            continue
        if refusal is not None:
            entry.refuse(proposal, refusal)
            draft = Draft(before)
        else:
            entry.accept(proposal, commands)
    if entry.commands:
        entry.image = draft.image()
    return entry
