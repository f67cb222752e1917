"""The process that Spark forks its Python workers from, with what they all need loaded.

A worker that reads or writes the log loads Arrow and machine code that numba keeps, which takes seconds of a
core for each of them. Forked after that, they have it at once. Run by Spark, as `spark.python.daemon.module`,
with the module that workers run: those of tasks are many; others, which plan and commit, load what they need.
"""

import sys

from pyspark.daemon import manager

if __name__ == "__main__":
    if sys.argv[1:2] == ["pyspark.worker"]:
        import penstock.spark.encode_kernels
        import penstock.spark.kernels  # noqa: F401
    manager()
