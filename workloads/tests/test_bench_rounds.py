"""Who comes first in a round."""

from cobali_workloads.report.rounds import run_rounds


def test_every_second_round_goes_backwards_and_figures_stay_with_their_contender():
    ran = []

    def contender(name):
        def run():
            ran.append(name)
            return {"n": float(len(ran))}

        return run

    rounds = run_rounds({name: contender(name) for name in "abc"}, n_rounds=3)
    assert "".join(ran) == "abccbaabccba"
    assert list(rounds.figures) == ["a", "b", "c"]
    assert rounds.values("a", "n") == [6.0, 7.0, 12.0]
    assert [used["contender"] for used in rounds.usage] == list("cbaabccba")
