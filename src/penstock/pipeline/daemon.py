"""The process that Spark forks its Python workers from, with what they all need loaded.

A worker that reads or writes the log loads Arrow and machine code that numba keeps, which takes seconds of a
core for each of them. Forked after that, they have it at once. Run by Spark, as `spark.python.daemon.module`.
"""

from pyspark.daemon import manager

import penstock.spark.encode_kernels
import penstock.spark.kernels  # noqa: F401

if __name__ == "__main__":
    manager()
