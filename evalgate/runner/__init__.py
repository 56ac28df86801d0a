"""Running a suite against a model: request, plan, run.  The runner asks and records; it never judges."""

from __future__ import annotations

from evalgate.backends.load_options import LoadOptions, read_arguments
from evalgate.backends.server_options import ServerOptions, read_key
from evalgate.runner.compile import Made, compile_to
from evalgate.runner.fit import Fit, fit_suite
from evalgate.runner.looks import Looks
from evalgate.runner.plan import Plan, Speed, StreamCost, make_plan
from evalgate.runner.probe import probe
from evalgate.runner.request import Bench, RunRequest, prepare
from evalgate.runner.rescore import Rescoring, rescore, write_rescored
from evalgate.runner.run import Progress, run_suite

__all__ = [
    "Bench",
    "Fit",
    "LoadOptions",
    "Looks",
    "Made",
    "Plan",
    "Progress",
    "Rescoring",
    "RunRequest",
    "ServerOptions",
    "Speed",
    "StreamCost",
    "compile_to",
    "fit_suite",
    "make_plan",
    "prepare",
    "probe",
    "read_arguments",
    "read_key",
    "rescore",
    "run_suite",
    "write_rescored",
]
