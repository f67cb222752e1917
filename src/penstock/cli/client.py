"""The client of the command line is the one that other rooms use: `penstock.client`."""

from penstock.client import AnswerError, Client, ClientError, Connection, error_code, messages

__all__ = ["AnswerError", "Client", "ClientError", "Connection", "error_code", "messages"]
