"""What pipelines are told where no verdict came out: red, with the error, in the files that a verdict would fill."""

from __future__ import annotations

from junitparser import Error, JUnitXml, TestCase, TestSuite

from evalgate.errors import EvalgateError, ExitCode
from evalgate.gates.clean_text import clean, markdown_safe

NAMES = {ExitCode.REFUSED: "REFUSED", ExitCode.TAMPERED: "TAMPERED"}


def status(error: EvalgateError) -> str:
    """``REFUSED``, ``ERROR`` or ``TAMPERED``."""
    return NAMES.get(error.exit_code, "ERROR")


def junit(error: EvalgateError) -> str:
    """Return JUnit XML with one test case that is an error."""
    suite = TestSuite("evalgate")
    suite.add_property("verdict", status(error))
    case = TestCase("verdict", classname="evalgate")
    case.result = [Error(clean(str(error)), type_=type(error).__name__)]
    suite.add_testcase(case)
    document = JUnitXml("evalgate")
    document.add_testsuite(suite)
    document.update_statistics()
    text: bytes = document.tostring()
    return text.decode("utf-8")


def markdown(error: EvalgateError) -> str:
    """Return GitHub Markdown that names the error; there is no recall to show."""
    return (
        f"## evalgate: {status(error)}\n\n"
        f"Nothing was judged: {markdown_safe(str(error))}\n\n"
        f"Exit code {int(error.exit_code)}.\n"
    )
