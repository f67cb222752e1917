"""Stands for the `docker` command where a suite stops and starts brokers, reads their logs and runs programs beside them."""

import os
import socket
import sys


def main(arguments: list[str]) -> int:
    match arguments:
        case ["compose", "start" | "stop" | "logs" as verb, *_]:
            said = asked(verb, arguments[-1].removeprefix("kafka-"))
            print(said)
            return 1 if said.startswith("FAILED") else 0
        case ["compose", "exec", "-T", _, program, *given]:
            os.execvp(program, [program, *given])
    print(f"this stand-in for docker cannot do {' '.join(arguments)}", file=sys.stderr)
    return 2


def asked(verb: str, broker: str) -> str:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ["CONFORMANCE_CONTROL"])
        connection.sendall(f"{verb} {broker}\n".encode())
        with connection.makefile() as answer:
            return answer.read()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
