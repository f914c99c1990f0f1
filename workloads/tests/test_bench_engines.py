"""`cobali bench engines`: what it makes of the rounds."""

from cobali_workloads.commands.engines import report_of


def test_many_engines_are_compared_with_the_fewest():
    found = {
        1: [{"tokens_per_s": rate, "ingress_us": 300.0} for rate in (100.0, 90.0, 200.0)],
        4: [{"tokens_per_s": rate, "ingress_us": 310.0} for rate in (390.0, 300.0, 400.0)],
    }
    (table,) = report_of("cobali bench engines", found, offered={1: 200.0, 4: 800.0}).tables
    assert list(table.rows) == [("1", "200", "100", "1.00", "300"), ("4", "800", "390", "3.90", "310")]
