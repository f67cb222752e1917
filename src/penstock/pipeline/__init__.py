"""Pipelines on Spark: topics in, tables and topics out, defined in a Python file.

`penstock pipeline run FILE.py` runs one; `definition` says what such a file holds, and examples/ has one.
"""

from penstock.pipeline.definition import Pipeline, Source
from penstock.pipeline.errors import PipelineError
from penstock.pipeline.formats import Avro, Json, Protobuf, Text

__all__ = ["Avro", "Json", "Pipeline", "PipelineError", "Protobuf", "Source", "Text"]
