"""Files that may be anything: one sentence, in bounded time and memory."""

from pathlib import Path

import pytest

from weft.config import make_config, parse_set, read_yaml
from weft.disk import parse_json, parse_yaml
from weft.errors import UserError

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]\n" for level in range(1, 12)
)


def test_aliases_are_plain_values_until_they_are_too_many() -> None:
    assert parse_yaml("a: &one {b: 1}\nc: *one\n", "f", "d") == {"a": {"b": 1}, "c": {"b": 1}}
    with pytest.raises(UserError, match="aliases expanded"):
        parse_yaml(BOMB, "f.yaml", "mend it")
    with pytest.raises(UserError, match="aliases expanded"):
        parse_yaml("&a [*a]", "f.yaml", "mend it")


@pytest.mark.parametrize(
    "text", ["[" * 10_000, "a: [", "\t", "{a: b", "? " * 5_000, "!!python/object:os.system {}", "\0"]
)
def test_what_is_no_yaml_is_a_sentence(text: str, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=r"config\.yaml") as caught:
        read_yaml(file)
    assert "\n" not in str(caught.value)


def test_a_config_file_that_is_none(tmp_path: Path) -> None:
    for text, words in ((BOMB, "aliases"), ("# " + "x" * (2 << 20), "more than 1,048,576 bytes")):
        (tmp_path / "config.yaml").write_text(text)
        with pytest.raises(UserError, match=words):
            read_yaml(tmp_path / "config.yaml")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match="is a folder"):
        read_yaml(tmp_path / "folder")
    with pytest.raises(UserError, match="is missing"):
        read_yaml(tmp_path / "none.yaml")


def test_settings_of_the_command_line_are_bounded() -> None:
    assert parse_set(["optim.lr=1e-2", "sample.fanout=[5,5]"]) == {"optim": {"lr": 0.01}, "sample": {"fanout": [5, 5]}}
    assert parse_set(["a.b=&x [*x]"]) == {"a": {"b": "&x [*x]"}}
    with pytest.raises(UserError):
        make_config(parse_set(["data=" + "[" * 5_000]))


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, '{"a":' * 100_000, "nul", "\ud800"])
def test_what_is_no_json_is_a_sentence(text: str) -> None:
    with pytest.raises(UserError, match="is damaged"):
        parse_json(text, "manifest.json", "make it again")
