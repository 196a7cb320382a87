"""The commands of docs/types.md, on the tables that examples/types/make_data.py makes."""

import csv
import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def shop():
    spec = importlib.util.spec_from_file_location("shop", ROOT / "examples" / "types" / "make_data.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def table(file):
    with Path(file).open() as handle:
        return list(csv.DictReader(handle))


def test_the_page_shows_what_the_example_writes():
    page = (ROOT / "docs" / "types.md").read_text()
    shown = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert shown == [shop().DESCRIPTION, shop().NEW_DESCRIPTION]


@pytest.fixture
def tables(tmp_path):
    return shop().write_shop(tmp_path / "shop", users=60, items=30, purchases=500)


def test_from_tables_to_an_export(weft, tables):
    code, out, err = weft("ingest", tables, "--out", "graph")
    assert code == 0, err
    shown = " ".join(re.sub(r"[│\n]", " ", out).split())
    assert "user (60, 5 features, the target), item (30, 5 features), tag (5, learned rows)" in shown
    assert "item rev_buys user (500)" in shown and "features of type item: 5 columns of items.csv" in shown
    assert weft("inspect", "graph")[1].splitlines()[1:5] == out.splitlines()[1:5]
    assert weft("partition", "graph", "--parts", "2", "--method", "random", "--out", "parts")[0] == 0
    assert "types of vertices" in weft("inspect", "parts")[1]
    args = ("--model", "rgat", "--epochs", "4", "--set", "model.hidden=8", "--set", "threads=1", "--run", "run")
    code, out, err = weft("train", "--data", "graph", *args)
    assert code == 0 and "test accuracy" in out, err
    code, out, err = weft("evaluate", "run")
    assert code == 0 and "test accuracy" in out
    code, out, err = weft("export", "run", "--out", "out.csv", "--what", "probabilities")
    assert code == 0 and "60 rows" in out, err
    rows = table("out.csv")
    assert [row["user_id"] for row in rows] == [str(user) for user in range(60)]
    assert {row["type"] for row in rows} == {"user"} and {row["class"] for row in rows} <= set(shop().SEGMENTS)
    assert weft("report", "run", "--out", "page.html")[0] == 0
    newcomers_are_predicted(weft, tables.parent)


def newcomers_are_predicted(weft, folder):
    code, out, err = weft("predict", "run", "--attach", folder / "new.yaml", "--what", "predictions", "--out", "n.csv")
    assert code == 0 and "6 vertices written" in out, err
    rows = table("n.csv")
    assert [(row["user_id"], row["type"]) for row in rows] == [(str(user), "user") for user in range(60, 66)]
    assert {row["class"] for row in rows} <= set(shop().SEGMENTS) and {row["split"] for row in rows} == {""}
    code, _, err = weft(
        "predict", "run", "--attach", folder / "new-purchases.csv", "--features", folder / "new-users.csv"
    )
    assert code == 2 and "describe the tables of new vertices" in " ".join(err.split())
    (folder / "new-users.csv").write_text("user_id,age,city\n5,3,Rome\n")
    code, _, err = weft("predict", "run", "--attach", folder / "new.yaml", "--out", "never.csv")
    assert code == 2 and "'user:5' in" in err and "already" in " ".join(err.split()) and not Path("never.csv").exists()


def test_another_shop_is_predicted(weft, tables, tmp_path):
    text = tables.read_text().partition("  tag:")
    without = text[0] + "relations:" + text[2].partition("relations:")[2].partition("  - name: has")[0]
    tables.write_text(without)
    other = shop().write_shop(tmp_path / "other", users=40, items=30, purchases=300, seed=5)
    other.write_text(without)
    assert weft("ingest", tables, "--out", "graph")[0] == 0
    args = ("--epochs", "2", "--set", "model.hidden=8", "--set", "threads=1", "--run", "run")
    assert weft("train", "--data", "graph", "--model", "hgt", *args)[0] == 0
    assert weft("ingest", other, "--prepared-as", "graph", "--out", "new")[0] == 0
    code, _, err = weft("predict", "run", "--data", "new", "--out", "new.csv")
    assert code == 0, err
    assert len(table("new.csv")) == 40
    assert weft("ingest", other, "--out", "otherwise")[0] == 0
    code, _, err = weft("predict", "run", "--data", "otherwise", "--out", "refused.csv")
    assert code == 2 and "type 'user' of otherwise were prepared in another way" in " ".join(err.split())
    assert not Path("refused.csv").exists()


def test_mistakes_leave_nothing(weft, tables):
    tables.write_text(tables.read_text().replace("destination: tag", "destination: tags"))
    code, _, err = weft("ingest", tables, "--out", "graph")
    assert code == 2 and "did you mean 'tag'?" in err and not Path("graph").exists()
