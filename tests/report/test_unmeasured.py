"""What could not be measured is said to be so, and is no verdict."""

import pytest

from polykv.report.summary import PolicySummary, control_lines, headline


def _control(name, *states):
    return [{"control": name, "status": "failed" if s is None else "ok", "as_expected": s} for s in states]


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        (_control("exact", True, True), "exact: passes in 2 of 2 cells × splits"),
        (_control("exact", True, False, None), "exact: passes in 1 of 2 cells × splits; 1 could not be measured"),
        (_control("zero_keys", True, None), "zero_keys: fails, as it must, in 1 of 1 cells × splits; 1 could not"),
        (_control("zero_keys", None, None), "zero_keys: could not be measured in any of 2 cells × splits"),
    ],
)
def test_a_control_counts_only_where_it_was_measured(rows, line):
    (said,) = control_lines(rows)
    assert said.startswith(line)


@pytest.mark.parametrize(
    ("verdicts", "clause"),
    [
        ({"failed": 3}, "int8 could not be measured."),
        ({"failed": 1, "fail": 2}, "int8 holds none of them (1 could not be measured)."),
        ({"failed": 1, "pass": 2}, "int8 holds 2 of them (1 could not be measured)."),
        ({"pass": 3}, "int8 holds all."),
    ],
)
def test_the_sentence_tells_lost_cells_from_failing_ones(verdicts, clause):
    assert headline([PolicySummary("int8", 3, verdicts)], "m").endswith(f"cells: {clause}")
