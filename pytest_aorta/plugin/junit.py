"""The file of ``--junitxml`` for a run with gates: gates are test cases, and failed trials do not fail."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

from pytest_aorta.common.texts import printable
from pytest_aorta.workspace.atomic import write_text


def follow_gates(file: Path, gates: Mapping[str, Sequence[str]], judged: Collection[tuple[str, str]]) -> None:
    """Write the file again; raises ``OSError`` and ``ValueError``.

    ``gates``: gate to the reason why it does not hold. ``judged``: workload and id of trials that gates judge.
    """
    tree = ElementTree.fromstring(file.read_text(encoding="utf-8"))
    for suite in tree.iter("testsuite"):
        removed = {"failure": 0, "error": 0}
        for case in suite.iter("testcase"):
            known = {each.get("name"): each.get("value", "") for each in case.iter("property")}
            if (known.get("aorta_workload", ""), known.get("aorta_trial_id", "")) not in judged:
                continue
            for each in [it for it in case if it.tag in removed]:
                removed[each.tag] += 1
                ElementTree.SubElement(case, "system-err").text = f"{each.get('message', '')}\n{each.text or ''}"
                case.remove(each)
        for text, problems in gates.items():
            case = ElementTree.SubElement(suite, "testcase", classname="aorta.gates", name=text, time="0")
            if problems:
                failure = ElementTree.SubElement(case, "failure", message=printable("; ".join(problems)))
                failure.text = printable("\n".join(problems))
        failed = sum(bool(problems) for problems in gates.values())
        for name, change in (
            ("failures", failed - removed["failure"]),
            ("errors", -removed["error"]),
            ("tests", len(gates)),
        ):
            suite.set(name, str(int(suite.get(name, "0")) + change))
    write_text(file, '<?xml version="1.0" encoding="utf-8"?>' + ElementTree.tostring(tree, encoding="unicode"))
