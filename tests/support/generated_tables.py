"""Tables of made-up trials, with names that are hostile to what shows them."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from pytest_aorta.triage import TriageSettings
from pytest_aorta.triage.facts import CellKey, Outcome, TrialFacts, steady_steps
from pytest_aorta.triage.signatures import Signature
from pytest_aorta.triage.verdicts import Table
from support.triage_facts import triage_of

_TRAPS = (
    "a|b",
    "`code`",
    "<script>alert(1)</script>",
    "&lt;",
    "two\nlines",
    "**bold** _it_ ~~x~~",
    "[link](http://example.org)",
    "![i](x)",
    "\x1b[31mred\x1b[0m",
    "back\\slash|",
    "lone \udc80 surrogate",
    "wide 漢字漢字",
    "a\u0301",
    "# head",
    "- item",
    "1. item",
    "x" * 200,
    "very-long-" * 12 + "name",
    "$math$",
    "\\|",
)

names = st.one_of(
    st.sampled_from(("none", "omp_1", "tf32_off", "__init__", "a_b_c")),
    st.sampled_from(_TRAPS),
    st.text(st.characters(exclude_categories=()), min_size=1, max_size=40).filter(lambda text: text.strip() != ""),
)

_signatures = st.builds(
    Signature,
    kind=st.sampled_from(("exception", "signal", "result")),
    phase=st.just("run"),
    type=names,
    where=st.one_of(st.just(""), names),
    message=st.one_of(st.just(""), names),
)


@st.composite
def cells(draw: st.DrawFn) -> list[TrialFacts]:
    environment, mitigation = draw(names), draw(names)
    test = draw(st.one_of(st.just(""), names))
    options = draw(names) if test else ""
    key = CellKey(draw(st.sampled_from(("gemm", "fsdp"))), f"{environment}-{mitigation}", test, options)
    ways = draw(st.lists(_signatures, min_size=1, max_size=6))
    step = draw(st.one_of(st.none(), st.floats(0.001, 1e6)))
    outcomes: list[Outcome] = draw(
        st.lists(
            st.sampled_from(("ok", "ok", "failed", "failed", "timeout", "infrastructure", "did not run")), max_size=12
        )
    )
    return [
        TrialFacts(
            key=key,
            environment=environment,
            mitigations=(mitigation,),
            trial_id=f"t{index}",
            index=index,
            file=f"{index}.json",
            outcome=outcome,
            signature=ways[index % len(ways)] if outcome in ("failed", "timeout") else None,
            steps=None if step is None else steady_steps([step * (1 + index / 100)] * 2),
            warnings=(draw(names),) if index == 0 else (),
            exit_status="ok" if outcome == "ok" else "workload_failed",
            iterations=index,
        )
        for index, outcome in enumerate(outcomes)
    ]


@st.composite
def tables(draw: st.DrawFn, most: int = 6) -> Table:
    table = triage_of(
        [facts for cell in draw(st.lists(cells(), max_size=most)) for facts in cell],
        TriageSettings(sequential=draw(st.booleans())),
    )
    return replace(table, warnings=tuple(draw(st.lists(names, max_size=2))))
