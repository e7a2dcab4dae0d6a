from pathlib import Path

from fedstrata.comparison.ledger import Jobs, Ledger


def test_jobs_say_their_share() -> None:
    assert str(Jobs(asked=4000, trained=1240)) == "trained 1,240 of 4,000 jobs; 31 %"
    assert Jobs(0, 0).share == 1.0


def test_a_ledger_goes_on_where_it_ends_and_counts_no_job_twice(tmp_path: Path) -> None:
    path = tmp_path / "jobs.jsonl"
    ledger = Ledger(path)
    ledger.add(0, 1, {"fedavg": 5, "cfl": 5}, 5)
    ledger.add(0, 2, {"fedavg": 5, "cfl": 5}, 8)
    ledger.add(0, 3, {"fedavg": 0, "cfl": 0}, 0)
    assert ledger.jobs == Jobs(20, 13)
    with path.open("a") as file:
        file.write('{"seed": 0, "rou')
    again = Ledger(path)
    assert again.jobs == Jobs(20, 13)
    again.add(0, 2, {"cfl": 5}, 5)
    again.add(0, 2, {"hicfl": 5}, 5)
    again.add(1, 2, {"cfl": 5}, 5)
    assert again.jobs == Ledger(path).jobs == Jobs(30, 23)
    assert len(path.read_text().splitlines()) == 4
