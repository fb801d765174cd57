import pytest

from polykv.errors import InputError
from polykv.shape import AttentionType, KvTensorShape

GOOD = {
    "mha": ("mha", 32, 32, 32, 128, 4096),
    "gqa": ("gqa", 40, 32, 8, 128, 4096),
    "mqa": ("mqa", 32, 32, 1, 128, 4096),
    "a single head": ("mha", 1, 1, 1, 8, 8),
    "head_dim is free of hidden_size": ("gqa", 26, 4, 1, 256, 1152),
    "capitals": ("MHA", 2, 2, 2, 16, 32),
}

BAD = {
    "MHA with fewer KV heads": (("mha", 2, 8, 4, 16, 128), r"MHA requires num_kv_heads \(4\) == num_heads \(8\)"),
    "GQA without groups": (("gqa", 2, 8, 8, 16, 128), r"GQA requires num_kv_heads \(8\) < num_heads \(8\)"),
    "GQA that does not divide": (("gqa", 2, 8, 3, 16, 128), "and to divide it"),
    "MQA with two": (("mqa", 2, 8, 2, 16, 128), "MQA requires num_kv_heads == 1, got 2"),
    "hidden_size": (("mha", 2, 3, 3, 16, 128), r"hidden_size \(128\) must be divisible by num_heads \(3\)"),
    "no layers": (("mha", 0, 2, 2, 16, 32), "num_layers is 0, must be at least 1"),
    "no head_dim": (("mha", 1, 2, 2, 0, 32), "head_dim is 0"),
    "a bool": (("mha", True, 2, 2, 16, 32), "num_layers is True, must be a whole number"),
    "too many": (("mha", 2**32, 2, 2, 16, 32), "below 4294967296"),
    "unknown type": (("mla", 1, 2, 2, 16, 32), "attention_type is 'mla'; known: mha, gqa, mqa"),
}


@pytest.mark.parametrize("name", GOOD)
def test_good_shapes_come_back_from_their_json(name):
    shape = KvTensorShape(*GOOD[name])
    assert shape.attention_type in set(AttentionType)
    assert KvTensorShape.from_dict(shape.to_dict()) == shape


@pytest.mark.parametrize("name", BAD)
def test_broken_rules_are_named(name):
    arguments, text = BAD[name]
    with pytest.raises(InputError, match=text):
        KvTensorShape(*arguments)


def test_sizes():
    shape = KvTensorShape("gqa", 2, 4, 2, 8, 32)
    assert shape.row_length == 2 * 2 * 8 * 2
    assert shape.raw_bytes(3) == 3 * 64 * 4


def test_json_is_read_strictly():
    raw = KvTensorShape.single_head(8).to_dict()
    assert raw["attention_type"] == "mha"
    with pytest.raises(InputError, match="no field 'heads'"):
        KvTensorShape.from_dict(raw | {"heads": 1})
    with pytest.raises(InputError, match="lacks the field 'head_dim'"):
        KvTensorShape.from_dict({name: value for name, value in raw.items() if name != "head_dim"})
