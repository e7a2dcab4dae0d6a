"""Every row of ``docs/data/data-problems.md`` has a test of what it says."""

import ast
import re

from blocks import ROOT

TESTED_BY = {
    # Clients
    "With the partition `natural`, `data.clients` is": "build/data_warnings/test_client_warnings.py::left_out_are",
    "A column is called `site`, `hospital`, `factory`": "build/data_warnings/test_client_warnings.py::does_not_read",
    "A sample has no value in the column of the": "build/data_warnings/test_client_warnings.py::samples_of_no_client",
    "The names of two clients or two classes": "build/data_warnings/test_client_warnings.py::written_in_two_ways",
    "The names of clients are numbers": "build/test_names_everywhere.py::numbers_of_a_column_are_names",
    "The names of clients in a CSV file are codes": "data/test_own_files.py::keep_their_leading_zeros",
    "`data.clients` is higher": "partition/test_partition_maths.py::natural_gives_each_client_one_value",
    "The column that `partition.column` names": "build/data_warnings/test_client_warnings.py::is_not_there_is_refused",
    "In Python, one table or array": "data/test_kept_clients.py::of_all_clients_in_one_are_refused",
    # Tables and files
    "A feature has no finite number": "data/test_own_files.py::tables_that_do_not_fit",
    "A sample has no class": "data/test_own_files.py::missing_class_is_no_class",
    "`data.label` compares a column": "data/test_own_files.py::values_of_which_no_class_can_be_made",
    "`data.classes` has no class": "data/test_own_files.py::values_of_which_no_class_can_be_made",
    "`local.class_weights` has another number": "build/test_class_weights.py::weights_that_do_not_fit",
    "There is no column of classes": "data/test_own_files.py::tables_that_do_not_fit",
    "The column of classes holds numbers that are not whole": "build/test_own_clients.py::refused_as_classes",
    "A column of numbers names the clients": "docs/test_data.py::do_not_learn_from_the_names",
    "A feature tells which client": "build/data_warnings/test_feature_warnings.py::tell_the_client_the_row_or_the_time",
    "Texts keep a column of numbers": "build/data_warnings/test_feature_warnings.py::its_writing_keeps_from_being",
    "A feature has values again and again": "build/data_warnings/test_feature_warnings.py::stand_for_a_missing",
    "An array of numpy is masked": "data/test_kept_clients.py::masked_in_rows_is_a_gap",
    "A class or a client is called `NA`": "build/data_warnings/test_client_warnings.py::called_as_missing_values",
    "All samples are of one class": "build/data_warnings/test_target_warnings.py::one_class_and_numbers",
    "Numbers to learn are far from 0 and 1": "build/data_warnings/test_target_warnings.py::targets_in_a_unit",
    "A column has no name": "data/test_own_files.py::without_a_name_numbers_the_rows",
    "A CSV file is not saved as UTF-8": "data/test_own_files.py::in_another_encoding",
    "The columns of a CSV file are separated": "data/test_own_files.py::separated_by_something_else",
    "A table has a header and no rows": "data/test_own_files.py::header_alone",
    "Two columns have one name": "data/test_own_files.py::tables_that_do_not_fit",
    "Files have their columns in another order": "data/test_own_files.py::found_by_their_names",
    "The classes of a run are texts": "results/test_assign.py::look_like_numbers_are_matched",
    "The classes of a federation are texts": "flower/test_client_data.py::numbers_of_a_table_are_no_classes",
    "Files of clients have other columns": "data/test_own_files.py::files_of_clients_that_do_not_fit",
    "A folder holds `test.csv` without": "data/test_own_files.py::split_is_never_taken_for_a_client",
    "Folders of splits are called `Train`": "data/test_own_files.py::may_have_their_usual_names",
    "Tables lie beside folders of images": "data/test_own_files.py::tables_beside_images",
    "A photo has a note of how to turn it": "data/test_own_files.py::turned_as_its_camera_says",
    "A part of an image is transparent": "data/test_own_files.py::what_is_transparent_is_white",
    "A column is called `Split`": "data/test_own_files.py::roles_are_found_in_upper_case",
    "`data.label` or `data.inputs` names": "data/test_own_files.py::cannot_be_chosen_where_there_are_none",
    "A file has lists, images or signals": "data/test_parquet.py::beside_lists_are_named",
    "A folder holds files that are not read": "data/test_own_files.py::look_like_data_and_are_not_read",
    "Two files have the name of one client": "data/test_own_files.py::not_dropped_for_an_ending",
    "Clients in Python have samples of other shapes": "data/test_kept_clients.py::refused_with_the_name_of_the_client",
    "Images have other sizes": "data/test_own_files.py::resized_or_must_have_one_size",
    "A recording is empty, or shorter": "build/data_warnings/test_recording_warnings.py::too_short_are_counted",
    "All recordings of a subject": "build/data_warnings/test_recording_warnings.py::all_too_short_is_named",
    "All recordings are shorter": "data/test_recordings.py::all_shorter_than_a_window",
    # Samples that depend on each other
    "A column has a name like `trial`": "build/data_warnings/test_unit_warnings.py::looks_like_a_unit",
    "Recordings have such a column": "build/data_warnings/test_recording_warnings.py::of_coarser_ones",
    "There is no such column, but samples": "build/data_warnings/test_neighbour_correlation.py::windows_of_one",
    "A sample has no value in the column that": "build/data_warnings/test_unit_warnings.py::samples_of_no_unit",
    "Test samples equal a training sample": "build/data_warnings/test_copy_warnings.py::copies_of_training_samples",
    "Many samples are near": "build/data_warnings/test_copy_warnings.py::noisy_copies_of_each_sample",
    "A client has fewer than five test samples": "build/data_warnings/test_held_out_warnings.py::few_test_samples_of",
    "A client is tested on a class that it does": "build/data_warnings/test_held_out_warnings.py::class_of_one_unit",
    "A client trains on one unit of a class": "build/data_warnings/test_held_out_warnings.py::halves_that_lack_a_class",
    "A client has one unit in all": "partition/test_partitioning.py::of_one_trial_or_one_sample_cannot_be_split",
    "The file of a newcomer has several values": "results/test_assign.py::several_clients_is_not_one_newcomer",
    "The data of a newcomer lack the column": "results/test_assign.py::newcomer_without_the_unit",
    "A value of `data.unit` is both": "build/data_warnings/test_unit_warnings.py::other_clients_train_on",
    # Test samples of your own
    "The test samples lack": "build/data_warnings/test_held_out_warnings.py::without_the_column_of_the_clients",
    "A client has no test samples": "build/data_warnings/test_held_out_warnings.py::without_test_samples_is_refused",
    "All tokens of a client's training or test": "engine/test_parts.py::tokens_are_all_padding",
    "Test samples belong to a client": "build/data_warnings/test_held_out_warnings.py::without_training_samples",
    "The column `split` holds": "build/data_warnings/test_held_out_warnings.py::split_column_with_other_values",
    "The column `split` marks all": "data/test_own_files.py::tables_that_do_not_fit",
    "`data.test` is a number although": "build/data_warnings/test_held_out_warnings.py::share_leaves_unused",
}
"""The beginning of each row, and the file of its test with a part of the test's name."""


def rows() -> list[str]:
    """The first cells of all rows but the headings."""
    text = (ROOT / "docs" / "data" / "data-problems.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| (.*?) \| .* \|$", text, re.MULTILINE)
    return [cell for cell in cells if cell not in ("---", "what is wrong")]


def test_every_row_has_a_test() -> None:
    for row in rows():
        assert [start for start in TESTED_BY if row.startswith(start)], row
    for start in TESTED_BY:
        assert [row for row in rows() if row.startswith(start)], start


def test_every_test_of_a_row_exists() -> None:
    for place in TESTED_BY.values():
        file, part = place.split("::")
        tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
        names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
        assert [name for name in names if name.startswith("test_") and part in name], place
