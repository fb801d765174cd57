"""Text that JSON can spell and nothing can hold is refused where it comes in."""

import pytest

from polykv.errors import InputError
from polykv.receipts import parse_json


@pytest.mark.parametrize(
    "text",
    ['{"a": "\\ud800"}', b'["x", {"\\udfff": 1}]', b'"\xed\xa0\x80"', b'"\xff"'],
    ids=["value", "key", "raw", "byte"],
)
def test_text_that_is_no_unicode_is_refused(text):
    with pytest.raises(InputError, match="the file is not valid JSON"):
        parse_json(text, "the file")


def test_text_outside_the_basic_plane_is_taken_however_it_is_spelled():
    assert parse_json('"\\ud83d\\ude00"') == parse_json('"\U0001f600"'.encode()) == "\U0001f600"
    assert parse_json('"a"'.encode("utf-8-sig")) == parse_json('"a"'.encode("utf-16")) == "a"
