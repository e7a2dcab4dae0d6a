"""The lock has all that `make` installs, each file with its hash; the licences of what the library needs are listed."""

import re
import subprocess
import tomllib
from collections.abc import Iterator
from importlib.metadata import requires

import pytest
from experiments.tools.licences import LOCK, PAGE, extras, is_locked_environment, locked, page, project, reached
from experiments.tools.website import ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text())
MAKEFILE = (ROOT / "Makefile").read_text()


def entries() -> Iterator[tuple[str, list[str]]]:
    """Every requirement of the lock and its hashes, without comments."""
    text = re.sub(r"^\s*#.*\n", "", LOCK.read_text(), flags=re.MULTILINE)
    for line in text.replace("\\\n", " ").splitlines():
        requirement, *hashes = line.split()
        yield requirement, hashes


def installed_by_make() -> list[Requirement]:
    """What the extra `dev` asks for, with the extras that it names, what is always needed, and what builds."""
    metadata = project()
    asked = [*metadata["dependencies"], *CONFIG["build-system"]["requires"]]
    for text in metadata["optional-dependencies"]["dev"]:
        own = Requirement(text)
        if own.name == metadata["name"]:
            asked += [each for extra in sorted(own.extras) for each in metadata["optional-dependencies"][extra]]
        else:
            asked.append(text)
    return [Requirement(text) for text in asked]


def needed_now(requirement: Requirement) -> list[Requirement]:
    """What an installed package needs here, with the extras that the requirement names."""
    needs = [Requirement(text) for text in requires(requirement.name) or ()]
    asked = ["", *requirement.extras]
    return [each for each in needs if not each.marker or any(each.marker.evaluate({"extra": extra}) for extra in asked)]


def test_every_package_of_the_lock_has_one_version_and_hashes_of_its_files() -> None:
    found = dict(entries())
    assert len(found) == len(locked()) == len(list(entries())) > 100
    for requirement, hashes in found.items():
        assert re.fullmatch(r"[a-z0-9-]+(\[[a-z0-9,-]+\])?==[\w.+!]+", requirement), requirement
        assert hashes and all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", each) for each in hashes), requirement


@pytest.mark.parametrize("asked", installed_by_make(), ids=str)
def test_what_the_project_asks_for_is_locked_at_a_version_that_it_admits(asked: Requirement) -> None:
    assert asked.specifier.contains(locked()[canonicalize_name(asked.name)], prereleases=True)


def test_the_lock_is_complete() -> None:
    """In its own environment: whatever an installed package needs is in the lock too."""
    if not is_locked_environment():
        pytest.skip("this environment is not that of requirements.lock")
    assert reached(requirement for requirement, _ in entries()) <= locked().keys()


def test_the_lock_names_the_extras_that_packages_need_of_each_other() -> None:
    """In its own environment. An older pip takes no hash of ``coverage`` for ``coverage[toml]``."""
    if not is_locked_environment():
        pytest.skip("this environment is not that of requirements.lock")
    pinned = [Requirement(text) for text, _ in entries()]
    needed = [wanted for each in pinned for wanted in needed_now(each) if wanted.extras]
    named = {canonicalize_name(each.name): each.extras for each in pinned}
    assert needed and [each for each in needed if not each.extras <= named[canonicalize_name(each.name)]] == []


def test_constraints_have_the_versions_of_the_lock_and_no_extras() -> None:
    """A newer pip refuses a constraint with extras."""
    (script,) = re.findall(r"^VERSIONS = sed -n '(.+)' requirements\.lock$", MAKEFILE, re.MULTILINE)
    command = ["sed", "-n", script.replace("\\#", "#"), str(LOCK)]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert found == [f"{name}=={pinned.split('+')[0]}" for name, pinned in locked().items()]


def test_torch_is_the_build_without_cuda() -> None:
    assert locked()["torch"] == "2.13.0+cpu"
    assert not [name for name in locked() if name.startswith(("nvidia-", "cuda-"))]


def test_make_installs_nothing_without_a_hash_but_the_project_itself() -> None:
    """Unless HASHES=no asks for it."""
    (recipe,) = re.findall(r"^ifeq \(\$\(HASHES\),yes\)\n((?:\t.*\n)+)else", MAKEFILE, re.MULTILINE)
    installs = [line for line in recipe.splitlines() if "$(UV_INSTALL)" in line]
    assert len(installs) == 2 and MAKEFILE.count("--require-hashes --requirement .venv/uv.txt") == 1
    assert "--require-hashes --requirement requirements.lock" in installs[0]
    assert installs[1].endswith("--no-build-isolation --no-deps --editable .")


def test_the_page_of_licences_names_all_that_the_library_needs() -> None:
    found = re.findall(r"^\| (\w[\w-]*) \| (\d\S*) \| (.+?) \|", PAGE.read_text(), re.MULTILINE)
    rows = {name: (pinned, licence) for name, pinned, licence in found}
    for name, (pinned, licence) in rows.items():
        assert locked()[name] == pinned and licence and licence != "UNKNOWN", name
    direct = [*project()["dependencies"], *(text for own in extras().values() for text in own)]
    named = {canonicalize_name(Requirement(text).name) for text in direct}
    assert named <= rows.keys()


def test_the_page_of_licences_is_what_make_licences_writes() -> None:
    if not is_locked_environment():
        pytest.skip("this environment is not that of requirements.lock")
    assert PAGE.read_text() == page(), "make licences"
