"""A client of schema registries that speak Confluent's HTTP interface. It only reads."""

import base64
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from penstock.pipeline.errors import PipelineError

TIMEOUT_SECONDS = 10
ATTEMPTS = 3


class NoSchemaError(Exception):
    """The registry answered that it has no such schema."""


class Registry:
    def __init__(self, url: str) -> None:
        """`url`: may carry a user and password."""
        try:
            parts = urllib.parse.urlsplit(url)
            known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:  # a bracket that is not closed, a port that is none
            known = False
        if not known:
            shown = url.rpartition("@")[2]  # What is before it may be a password.
            raise PipelineError(f"A schema registry is a URL such as http://host:8081, not {shown!r}.")
        self._headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if parts.username is not None:
            user = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {base64.b64encode(user.encode()).decode()}"
        self._url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"

    def by_id(self, number: int) -> str:
        """The schema with this number, as its author wrote it. Raises NoSchemaError, PipelineError."""
        return str(self._get(f"/schemas/ids/{number}")["schema"])

    def described(self, number: int) -> tuple[str, str, tuple[bytes, ...]]:
        """The kind of the schema with this number (AVRO, JSON, PROTOBUF) and the schema; of Protobuf the
        descriptors of its files instead, those that others import first."""
        found = self._get(f"/schemas/ids/{number}")
        kind = str(found.get("schemaType") or "AVRO")
        if kind != "PROTOBUF":
            return kind, str(found["schema"]), ()
        found = self._get(f"/schemas/ids/{number}?format=serialized")
        return kind, "", tuple(self._with_references(found, f"schema-{number}.proto", None).values())

    def latest(self, subject: str) -> str:
        try:
            return str(self._version(subject, "latest")["schema"])
        except NoSchemaError:
            raise PipelineError(f"The schema registry has no subject {subject!r}.") from None

    def protobuf_files(self, subject: str) -> tuple[bytes, ...]:
        """The descriptors of the newest schema of a subject and of what it refers to, those first."""
        try:
            return tuple(self._protobuf(subject, "latest", None).values())
        except NoSchemaError:
            raise PipelineError(f"The schema registry has no subject {subject!r}.") from None

    def _protobuf(self, subject: str, version: str, name: str | None) -> dict[str, bytes]:
        return self._with_references(self._version(subject, version, "?format=serialized"), subject, name)

    def _with_references(self, found: dict[str, Any], subject: str, name: str | None) -> dict[str, bytes]:
        from google.protobuf.descriptor_pb2 import FileDescriptorProto

        files: dict[str, bytes] = {}
        for one in found.get("references") or ():
            files.update(self._protobuf(one["subject"], str(one["version"]), one["name"]))
        try:
            file = FileDescriptorProto.FromString(base64.b64decode(found["schema"], validate=True))
        except Exception:
            raise PipelineError(
                f"What the schema registry has for {subject!r} is not a Protobuf schema in serialized form."
            ) from None
        # Others import it by the name under which they refer to it.
        file.name = name or file.name or subject
        files[file.name] = file.SerializeToString()
        return files

    def _version(self, subject: str, version: str, query: str = "") -> dict[str, Any]:
        return self._get(f"/subjects/{urllib.parse.quote(subject, safe='')}/versions/{version}{query}")

    def _get(self, path: str) -> dict[str, Any]:
        request = urllib.request.Request(f"{self._url}{path}", headers=self._headers)
        for attempt in range(ATTEMPTS):
            try:
                with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
                    found = json.load(answer)
            except urllib.error.HTTPError as error:
                if error.code == 404:
                    raise NoSchemaError from None
                failure = f"it answered {error.code}"
            except (OSError, ValueError) as error:
                failure = str(getattr(error, "reason", error))
            else:
                if isinstance(found, dict) and "schema" in found:
                    return found
                failure = "its answer has no schema"
            if attempt < ATTEMPTS - 1:
                time.sleep(0.2 * 4**attempt)
        raise PipelineError(f"The schema registry at {self._url} cannot be asked: {failure}.")
