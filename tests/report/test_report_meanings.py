from fedstrata.report import meanings


def test_every_threshold_and_every_measure_is_explained() -> None:
    assert set(meanings.THRESHOLDS) | set(meanings.THRESHOLDS.values()) <= set(meanings.METRICS)
    assert set(meanings.COMPARABLE) | set(meanings.SIMILARITIES) <= set(meanings.COMPARED_BY)
