"""The source of a function that is written for one message: its lines, its variables, what it refers to."""

from typing import Any


class Source:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 2
        self.names = 0
        self.scope: dict[str, Any] = {}

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def name(self) -> str:
        self.names += 1
        return f"v{self.names}"

    def bind(self, value: object) -> str:
        name = f"k{len(self.scope)}"
        self.scope[name] = value
        return name
