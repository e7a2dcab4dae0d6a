from xml.etree.ElementTree import fromstring

import pytest
from experiments.tools.readable_tables import ReadableTables
from markdown import markdown

NUMBERS = """method | accuracy | minus FedAvg | lower than
--- | --- | --- | ---
`strata` | 0.600 ± 0.010 | +0.100 (+0.010 to +0.190) | 1 of 20
FedAvg | 0.500 | - | -
"""
KEYS = """key | values | meaning
--- | --- | ---
`lr` | above 0 | The learning rate.
"""
SHORT = """file | content
--- | ---
`summary.json` | the result
"""
LONG = """the line says | what to do
--- | ---
expected a folder of runs, found nothing | Name another folder.
"""


@pytest.mark.parametrize(
    ("text", "kind", "stacked", "numbers"),
    [
        (NUMBERS, "numbers", False, ["accuracy", "minus FedAvg", "lower than"]),
        (KEYS, "prose", True, []),
        (SHORT, "prose", False, []),
        (LONG, "prose", True, []),
    ],
)
def test_a_table_says_what_it_holds(text: str, kind: str, stacked: bool, numbers: list[str]) -> None:
    table = fromstring(markdown(text, extensions=["tables", ReadableTables()]))
    assert table.get("data-kind") == kind and ("data-stack" in table.attrib) == stacked
    assert [cell.text for cell in table.iter("th") if "data-number" in cell.attrib] == numbers
    heads = [cell.text for cell in table.iter("th")]
    for row in list(table.iter("tr"))[1:]:
        assert [cell.get("data-label") for cell in row] == heads


def test_a_table_without_rows_stays_a_table() -> None:
    assert fromstring(markdown("a | b\n--- | ---\n", extensions=["tables", ReadableTables()])).tag == "table"
