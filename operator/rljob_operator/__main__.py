"""`python -m rljob_operator --config FILE`: one replica of the operator, until a signal stops it."""

import argparse
import asyncio
import json
import logging
import sys
import time
from pathlib import Path
from typing import NoReturn

from rljob_api.names import EXIT_BAD_MANIFEST, EXIT_FAILED, EXIT_SUCCEEDED
from rljob_operator.cluster.options_file import load_options
from rljob_operator.cluster.process import OperatorProcess
from rljob_operator.options import OptionsRefused

RECURSION = 25_000
"""The API server takes objects of 10000 levels. kopf's reader of JSON counts a level as a call: by Python's own limit
(1000) one job nested more deeply would end the operator at each start. A thread's stack has room for 20000."""


class _JsonLines(logging.Formatter):
    """One object a line, for collectors of logs."""

    def format(self, record: logging.LogRecord) -> str:
        """With the traceback where there is one."""
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def main() -> int:
    """Exit codes: 0 stopped by a signal, 1 the lease or the process is lost, 64 the options are wrong."""
    parser = _Arguments(prog="rljob-operator", description="The operator of RLJobs.")
    parser.add_argument("--config", type=Path, help="YAML file with the options; without it all are as by default")
    parser.add_argument("--log-format", choices=("text", "json"), default="json")
    parser.add_argument("--log-level", choices=("debug", "info", "warning"), default="info")
    arguments = parser.parse_args()
    _configure_logging(arguments.log_format, arguments.log_level)
    sys.setrecursionlimit(RECURSION)
    try:
        process = OperatorProcess(load_options(arguments.config))
    except ValueError as error:
        return _refused(error)
    try:
        return EXIT_SUCCEEDED if asyncio.run(process.run()) else EXIT_FAILED
    except OptionsRefused as error:
        return _refused(error)


class _Arguments(argparse.ArgumentParser):
    """What is wrong on the command line is wrong with the options, too."""

    def error(self, message: str) -> NoReturn:
        """As argparse does, but for the exit code."""
        self.print_usage(sys.stderr)
        self.exit(EXIT_BAD_MANIFEST, f"{self.prog}: {message}\n")


def _refused(error: ValueError) -> int:
    """The last words of the process, which `kubectl describe pod` shows."""
    print(error, file=sys.stderr)  # noqa: T201 - the user's to read
    return EXIT_BAD_MANIFEST


def _configure_logging(form: str, level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(_JsonLines() if form == "json" else plain)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("kopf").setLevel(logging.CRITICAL)  # what ends it is logged once, as the cause of a closed watch


if __name__ == "__main__":
    sys.exit(main())
