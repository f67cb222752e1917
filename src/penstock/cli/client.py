"""The command line's client is the one that other rooms use, too: `penstock.client`."""

from penstock.client import AnswerError, Client, ClientError, Connection, error_code, messages

__all__ = ["AnswerError", "Client", "ClientError", "Connection", "error_code", "messages"]
