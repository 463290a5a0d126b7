"""Reading junit XML that an untrusted program may have written."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Worst wins where one test is reported more than once (subtests, reruns).
_SEVERITY = {"skipped": 0, "passed": 1, "failed": 2, "error": 3}
# unittest reports a failing subtest as "test_name [message] (i=1)".
_SUBTEST = re.compile(r"^(\w+) [\[(]")


class ReportError(ValueError):
    """Not a junit report that can be believed."""


@dataclass(frozen=True)
class Case:
    """One test that did not pass. kind: failed | error; exception: its type as reported; text: the traceback."""

    test: str
    kind: str
    exception: str
    message: str
    text: str


@dataclass(frozen=True)
class Report:
    """tests: id -> passed | failed | error | skipped; cases: those that failed; collection: modules that could not be
    imported (not tests)."""

    tests: Mapping[str, str]
    cases: tuple[Case, ...]
    collection: tuple[Case, ...]


class _NoDoctype(ElementTree.TreeBuilder):
    """Entities can only be declared in a document type: refuse it, and none can expand."""

    def doctype(self, name: str, pubid: str | None, system: str | None) -> None:
        raise ReportError("the report declares a document type")


def _is_collection_error(element: ElementTree.Element, result: ElementTree.Element) -> bool:
    classname = element.get("classname") or ""
    return classname == "unittest.loader._FailedTest" or (result.get("message") or "") == "collection failure"


def parse_report(data: bytes) -> Report:
    """Parse junit XML (unittest-xml-reporting, pytest, surefire). Raises ReportError."""
    parser = ElementTree.XMLParser(target=_NoDoctype())
    try:
        parser.feed(data.decode("utf-8", "replace"))
        root: Any = parser.close()
    except ElementTree.ParseError as error:
        raise ReportError(f"the report is not XML ({error})") from None
    if root.tag not in ("testsuites", "testsuite"):
        raise ReportError(f"the report's root is <{root.tag}>, not <testsuites>")
    tests: dict[str, str] = {}
    cases, collection = [], []
    for element in root.iter("testcase"):
        name = element.get("name") or ""
        subtest = _SUBTEST.match(name)
        test = f"{element.get('classname') or ''}::{subtest.group(1) if subtest else name}"
        status = "passed"
        for result in element:
            if result.tag == "skipped":
                status = "skipped"
            elif result.tag in ("failure", "error"):
                status = "failed" if result.tag == "failure" else "error"
                message = result.get("message") or ""
                text = result.text or ""
                exception = result.get("type") or message.partition(":")[0]
                case = Case(test, status, exception, message, text)
                if _is_collection_error(element, result):
                    collection.append(case)
                else:
                    cases.append(case)
        if not collection or collection[-1].test != test:
            worst = max(status, tests.get(test, "skipped"), key=_SEVERITY.__getitem__)
            tests[test] = worst
    return Report(tests, tuple(cases), tuple(collection))
