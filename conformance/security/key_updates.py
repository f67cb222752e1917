"""A client that changes its keys for ever and says nothing, as TLS 1.3 lets it.

    python -m conformance.security.key_updates ADDRESS SECONDS

Each key update is a record of 27 bytes without data, and OpenSSL takes any number of them in one call. Python's module
cannot send them, so OpenSSL's own functions are called. It ends with 0 once it was closed or the time is over, and with 3
if there is no library of OpenSSL.
"""

import ctypes
import ctypes.util
import socket
import sys
import threading
import time

NOT_REQUESTED, CLIENT_BYTES = 0, 4_194_304


class Updates:
    """A connection of TLS whose ciphertext goes through a pair of sockets, to be sent in large pieces."""

    def __init__(self, library: ctypes.CDLL, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self.closed = threading.Event()
        self._peer = socket.create_connection((host, int(port)), 10)
        self._ours, theirs = socket.socketpair()
        for one in (self._ours, theirs):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, CLIENT_BYTES)
        for source, target in ((self._peer, theirs), (theirs, self._peer)):
            threading.Thread(target=self._copy, args=(source, target), daemon=True).start()
        pointer = ctypes.c_void_p
        for name in ("TLS_client_method", "SSL_CTX_new", "SSL_new"):
            getattr(library, name).restype = pointer
        self._library = library
        context = pointer(library.SSL_CTX_new(pointer(library.TLS_client_method())))
        self._ssl = pointer(library.SSL_new(context))
        library.SSL_set_fd(self._ssl, self._ours.fileno())

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65_536):
                target.sendall(data)
        except OSError:
            pass
        self.closed.set()

    def send(self, seconds: float) -> int:
        """How many could be sent."""
        if self._library.SSL_connect(self._ssl) != 1:
            raise ConnectionError("the handshake failed")
        ends, sent = time.monotonic() + seconds, 0
        while time.monotonic() < ends and not self.closed.is_set():
            self._library.SSL_key_update(self._ssl, NOT_REQUESTED)
            if self._library.SSL_do_handshake(self._ssl) != 1:
                break
            sent += 1
        return sent


def main() -> int:
    name = ctypes.util.find_library("ssl")
    if name is None:
        print("there is no library of OpenSSL")
        return 3
    updates = Updates(ctypes.CDLL(name), sys.argv[1])
    sent = updates.send(float(sys.argv[2]))
    print(f"{sent} key updates, {'closed' if updates.closed.wait(1.0) else 'still open'}")
    return 0 if updates.closed.is_set() else 1


if __name__ == "__main__":
    sys.exit(main())
