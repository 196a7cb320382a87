"""Codecs by name: one of a user's own trains like those of weft, and traits say what a codec can do."""

import sys
from collections.abc import Iterator

import pytest

import weft.plugins
from weft import UserError
from weft.aggregate import RAW, codec_names, codecs, format_named, register_codec
from weft.config import known_keys, make_config
from weft.run import start

PLUGIN = "tests.aggregate.own_codec"


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test registers is gone after it: messages of other tests list the codecs that there are."""
    monkeypatch.setattr(codecs, "_codecs", dict(codecs._codecs))
    yield
    sys.modules.pop(PLUGIN, None)


def settings(folder, codec, **more):
    train = {"epochs": 3, "eval_every": 3}
    model = {"name": "sage", "hidden": 8, "layers": 2, "dropout": 0.0}
    exchange = {"codec": codec, **more}
    return {"data": "synthetic:tiny", "run": str(folder), "workers": 2, "threads": 1, "model": model, "train": train,
            "exchange": exchange}  # fmt: skip


def test_a_run_trains_with_a_codec_from_outside(tmp_path, monkeypatch):
    """Half the bytes of raw rows, to the byte, and nearly the same loss; evaluation finds the codec again."""
    monkeypatch.setenv(weft.plugins.VARIABLE, PLUGIN)
    raw, own = (start(make_config(settings(tmp_path / name, name)), quiet=True) for name in ("raw", "fp16"))
    for kind in ("hidden_forward", "hidden_backward"):
        whole, half = (run.summary["wire_bytes"][kind] for run in (raw, own))
        assert whole == 2 * half > 0
    assert own.summary["wire_bytes"]["features"] == raw.summary["wire_bytes"]["features"], "constant rows are exact"
    assert own.summary["weights_sha256"] != raw.summary["weights_sha256"], "nothing was rounded"
    assert own.summary["train_loss"] == pytest.approx(raw.summary["train_loss"], rel=1e-2)
    values = own.evaluate()
    assert values == {name: pytest.approx(own.summary[name]) for name in values}
    assert "val_accuracy" in values


def test_what_an_own_codec_can_do_follows_from_its_traits(tmp_path, monkeypatch):
    monkeypatch.setenv(weft.plugins.VARIABLE, PLUGIN)
    assert format_named("fp16").traits.packs and "fp16" in codec_names()
    assert "fp16" in codec_names(lambda traits: traits.rounding == "float" and traits.packs)
    make_config(settings(tmp_path, "fp16", schedule="sequential", keep_packed=True))
    with pytest.raises(UserError, match="not fp16"):
        make_config(settings(tmp_path, "fp16", delta=True))
    with pytest.raises(UserError, match="a maximum of rounded rows is biased"):
        make_config({**settings(tmp_path, "fp16"), "model": {"name": "sage", "reduce": "max"}})


def test_names():
    assert codec_names()[:6] == ["raw", "bf16", "int8", "int4", "int2", "adaptive"]
    assert codec_names(lambda traits: traits.adaptive) == ["adaptive"]
    assert format_named("raw") is RAW
    assert all(name in known_keys()["exchange.codec"] for name in codec_names()[:6])
    with pytest.raises(ValueError, match="there is a codec 'raw' already"):
        register_codec("raw", lambda options: RAW)
    with pytest.raises(UserError, match="unknown codec 'int9': did you mean 'int"):
        format_named("int9")


def test_a_plugin_that_cannot_be_imported_is_named(monkeypatch):
    monkeypatch.setenv(weft.plugins.VARIABLE, "no_such_codecs")
    with pytest.raises(UserError, match="WEFT_PLUGINS names no_such_codecs, which cannot be imported"):
        format_named("fp17")
