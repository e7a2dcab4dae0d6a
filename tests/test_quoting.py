from fedstrata.quoting import dotted, printable, shown


def test_a_long_value_is_cut_to_sixty_characters() -> None:
    assert shown("a" * 1_000_000) == "'" + "a" * 56 + "..."
    assert shown(True) == "true"
    assert shown(10**5000) == "(int, too long to be shown)"


def test_a_key_stays_on_one_line_however_strange_its_parts_are() -> None:
    assert dotted(["data", "a\nb", ""]) == r"data.'a\nb'.''"
    assert dotted(list("abcdefghij")) == "a.b.c.d.....h.i.j"


def test_what_a_terminal_would_obey_is_written_as_an_escape() -> None:
    assert printable("\x1b[31m\x00é\u202e\udcff") == r"\x1b[31m\x00é\u202e\udcff"
