"""The README's examples are run as they stand."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

from cli_kit import REPO, Run, environment

from dfq.config import Settings

README = (REPO / "README.md").read_text()


def test_the_python_example_runs_as_it_stands_and_again(root: Path, tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    for done in (14, 25):  # the tasks with ids of their own are skipped the second time
        ran = subprocess.run(
            [sys.executable, "-c", code], env=environment(root), cwd=tmp_path, capture_output=True, text=True
        )
        assert ran.returncode == 0, ran.stderr
        assert f"completed={done}, failed=0" in ran.stdout
        assert "{'size': 30}" in ran.stdout
        assert (tmp_path / "queues" / "tiles" / "queue.json").is_file()


def test_the_exec_example_does_what_it_says(dfq: Run, tmp_path: Path) -> None:
    script = re.search(r"\$ cat count-words\n((?:    .*\n)+?)    \$", README)
    assert script is not None
    path = tmp_path / "count-words"
    path.write_text(re.sub(r"^    ", "", script[1], flags=re.MULTILINE))
    assert "$ chmod +x count-words\n" in README
    path.chmod(0o755)
    dfq("push", "a few words", "--id", "words")
    ran = dfq("work", "--exec", "./count-words", "--drain")
    assert ran.status == 0, ran.err
    assert str(dfq("show", "words", "--json").object["result"]).strip() == "3"


def test_the_function_example_does_what_it_says(dfq: Run, tmp_path: Path) -> None:
    code = re.search(r"\$ cat tiles\.py\n((?:(?:    (?!\$).*)?\n)+)    \$ dfq push '(.*)' --id page/1\n", README)
    assert code is not None
    (tmp_path / "tiles.py").write_text(re.sub(r"^    ", "", code[1], flags=re.MULTILINE))
    dfq("push", code[2], "--id", "page/1")
    dfq("push", '{"page": 101}', "--id", "page/101")
    ran = dfq("work", "tiles:scrape", "--drain", "--workers", "2")
    assert ran.status == 0, ran.err
    assert dfq("show", "page/1", "--json").object["result"] == {"items": 20}
    later = dfq("show", "page/101", "--json").object
    assert (later["state"], later["attempt"], later["error"]) == ("scheduled", 0, "not yet")


def test_the_first_screen_says_what_it_is_how_to_see_it_and_what_one_sees() -> None:
    screen = "\n".join(README.splitlines()[:45])
    for promised in ("task queue that is a folder", "Python 3.11", "scripts/demo", "scripts/test", "took '", "  ok  "):
        assert promised in screen


def test_every_exit_status_is_told() -> None:
    assert re.findall(r"^\| (\d) \| (\w+)", README, re.MULTILINE) == [
        ("0", "done"),
        ("1", "failed"),
        ("2", "usage"),
        ("3", "nothing"),
    ]


def test_the_shell_example_does_what_it_says(dfq: Run, root: Path, tmp_path: Path) -> None:
    found = re.search(r"( {4}task=\$\(dfq claim.*\n.*\n)", README)
    assert found is not None
    for n, (answer, state) in enumerate([("true", "completed"), ("false", "scheduled")]):
        dfq("push", "x", "--id", f"t{n}")
        script = f'dfq() {{ "{sys.executable}" -m dfq "$@"; }}; do_it() {{ {answer}; }}\n{found[1]}'
        subprocess.run(["bash", "-c", script], env=environment(root), cwd=tmp_path, check=True)
        assert dfq("show", f"t{n}", "--json").object["state"] == state


def test_every_setting_is_told_with_its_name() -> None:
    table = README.partition("## Settings")[2].partition("## On disk")[0]
    assert {f.name for f in fields(Settings)} - set(re.findall(r"`(\w+)`", table)) == set()


def test_the_demo_block_is_what_the_demo_prints() -> None:
    block = re.findall(r"```text\n(.*?)```", README, re.DOTALL)[0]
    witness = json.loads(re.findall(r"^  (\{.*\})$", block, re.MULTILINE)[0])
    assert witness["attempt"] == 2
    assert block.count("  ok  ") == 6
