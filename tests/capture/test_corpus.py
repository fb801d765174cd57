"""Documents come in as they are on disk; splits never share a token; short and empty texts are told."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polykv.capture.corpus import TextDocument, read_corpus, split_source
from polykv.capture.passages import PassageRules, cut_passages, split_counts
from polykv.capture.splits import passages_per_split
from polykv.errors import InputError, NonFiniteError
from polykv.receipts import digest_bytes


def words(text):
    return [int(word) for word in text.split()]


def document(name, n_tokens, base=0, splits=()):
    text = " ".join(str(base + i) for i in range(n_tokens))
    return TextDocument(name, text, digest_bytes(text.encode()), splits)


def spans(plan, n_bos=0):
    return [(p.split, p.document, p.start, p.start + len(p.token_ids) - n_bos) for p in plan.passages]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "b.txt").write_text("bee", encoding="utf-8")
    (tmp_path / "a.txt").write_text("åh", encoding="utf-8")
    (tmp_path / "c.jsonl").write_text('{"text": "one", "body": "eins"}\n\n{"text": "two", "body": "zwei"}\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_files_globs_and_jsonl(folder):
    read = read_corpus(["*.txt", "c.jsonl", "a.txt"])
    assert [(d.name, d.text) for d in read] == [
        ("a.txt", "åh"),
        ("b.txt", "bee"),
        ("c.jsonl:1", "one"),
        ("c.jsonl:3", "two"),
    ]
    assert read[0].digest == digest_bytes((folder / "a.txt").read_bytes())
    assert read[3].digest == digest_bytes(b"two")
    assert [d.text for d in read_corpus(["c.jsonl"], text_field="body")] == ["eins", "zwei"]


def test_a_file_may_be_assigned_to_splits_by_hand(folder):
    read = read_corpus(["confirm:a.txt", "calibrate:a.txt", "select:b.txt"])
    assert [(d.name, d.splits) for d in read] == [("a.txt", ("calibrate", "confirm")), ("b.txt", ("select",))]
    assert split_source("notes:a.txt") == (None, "notes:a.txt")


def test_files_of_one_name_keep_their_folder(folder):
    (folder / "sub").mkdir()
    (folder / "sub" / "a.txt").write_text("other")
    assert [d.name for d in read_corpus(["a.txt", "sub/a.txt", "b.txt"])] == [
        f"{folder.name}/a.txt",
        "sub/a.txt",
        "b.txt",
    ]


def _bad_utf8(folder):
    (folder / "x.txt").write_bytes(b"ok\xff")


def _bad_json(folder):
    (folder / "x.jsonl").write_text('{"text": "one"}\n{"text": ')


def _no_field(folder):
    (folder / "x.jsonl").write_text('{"body": "one"}\n')


def _nan_field(folder):
    (folder / "x.jsonl").write_text('{"text": "one", "score": NaN}\n')


def _half_a_character(folder):
    (folder / "x.jsonl").write_text('{"text": "one \\ud800 two"}\n')


@pytest.mark.parametrize(
    ("prepare", "sources", "error", "told"),
    [
        (None, ["none*.txt"], InputError, "'none\\*.txt' matches no file"),
        (None, ["."], InputError, "is a directory; write ./\\*.txt"),
        (None, ["calibrate:a.txt", "b.txt"], InputError, "write split:path for all or for none"),
        (None, ["calibrate:"], InputError, "names a split but no file"),
        (None, [""], InputError, "names no file"),
        (_half_a_character, ["x.jsonl"], InputError, "x.jsonl line 1 is not valid JSON: .*surrogates"),
        (_bad_utf8, ["x.txt"], InputError, "x.txt is not UTF-8 text: byte 2 is 0xff"),
        (_bad_json, ["x.jsonl"], InputError, "x.jsonl line 2 is not valid JSON"),
        (_no_field, ["x.jsonl"], InputError, "line 1: no text in field 'text' \\(it has body\\)"),
        (_nan_field, ["x.jsonl"], NonFiniteError, "line 1 contains NaN"),
    ],
)
def test_bad_sources_are_refused_by_name(folder, prepare, sources, error, told):
    if prepare:
        prepare(folder)
    with pytest.raises(error, match=told):
        read_corpus(sources)


@pytest.mark.parametrize(
    ("n", "fractions", "expected"),
    [
        (24, (0.25, 0.25, 0.5), (6, 6, 12)),
        (5, (0.25, 0.25, 0.5), (1, 1, 3)),
        (2, (0.25, 0.25, 0.5), (1, 0, 1)),
        (7, (1 / 3, 0, 2 / 3), (2, 0, 5)),
        (10, (0.1, 0.2, 0.7), (1, 2, 7)),
    ],
)
def test_passages_per_split(n, fractions, expected):
    assert tuple(passages_per_split(n, fractions).values()) == expected


def test_three_documents_are_split_by_document():
    texts = [document("p", 1000, 0), document("b", 2000, 10_000), document("m", 1000, 20_000)]
    plan = cut_passages(texts, words, PassageRules(50, 24))
    assert plan.split_rule == "document"
    assert split_counts(plan) == {"calibrate": 6, "select": 6, "confirm": 12}
    names = {p.split: plan.documents[p.document].name for p in plan.passages}
    assert names == {"calibrate": "p", "select": "m", "confirm": "b"}
    assert [p.index for p in plan.passages] == list(range(24))
    assert [d.n_tokens for d in plan.documents] == [1000, 2000, 1000]


def test_one_document_is_cut_into_regions_with_a_gap():
    plan = cut_passages([document("p", 260)], words, PassageRules(10, 24))
    assert plan.split_rule == "region"
    ranges = {split: [s for s in spans(plan) if s[0] == split] for split in ("calibrate", "select", "confirm")}
    assert (ranges["calibrate"][0][2], ranges["calibrate"][-1][3]) == (0, 60)
    assert (ranges["select"][0][2], ranges["select"][-1][3]) == (70, 130)
    assert (ranges["confirm"][0][2], ranges["confirm"][-1][3]) == (140, 260)


def test_passages_are_spread_evenly():
    plan = cut_passages([document("p", 100)], words, PassageRules(10, 2, (0, 0, 1)))
    assert [p.start for p in plan.passages] == [20, 70]
    np.testing.assert_array_equal(plan.passages[1].token_ids, np.arange(70, 80))


def test_a_split_too_small_for_its_document_falls_back_to_regions_only_when_auto():
    texts = [document("long", 2000), document("tiny", 20, 10_000), document("small", 20, 20_000)]
    assert cut_passages(texts, words, PassageRules(20, 24)).split_rule == "region"
    with pytest.raises(InputError, match="hold 1 passages of 20 tokens, but 6 are asked"):
        cut_passages(texts, words, PassageRules(20, 24, split_by="document"))
    with pytest.raises(InputError, match="1 documents cannot fill 3 splits"):
        cut_passages(texts[:1], words, PassageRules(20, 24, split_by="document"))


def test_assignment_by_hand_is_kept():
    texts = [document("a", 300, 0, ("confirm",)), document("b", 300, 1000, ("calibrate", "select"))]
    plan = cut_passages(texts, words, PassageRules(10, 24))
    assert plan.split_rule == "by hand"
    assert {p.split for p in plan.passages if plan.documents[p.document].name == "a"} == {"confirm"}
    with pytest.raises(InputError, match="split select has 0 texts that hold 0 passages"):
        cut_passages(
            [document("a", 300, 0, ("confirm",)), document("b", 300, 9, ("calibrate",))], words, PassageRules(10, 24)
        )


def test_the_same_text_never_lands_in_two_splits():
    one, two = document("one", 300, 0, ("calibrate",)), document("two", 300, 0, ("confirm",))
    with pytest.raises(InputError, match="one .* and two .* are the same text in different splits"):
        cut_passages([one, two, document("x", 300, 999, ("select",))], words, PassageRules(10, 8))
    texts = [document(name, 300, base) for name, base in (("a", 0), ("b", 0), ("c", 999), ("d", 5999))]
    plan = cut_passages(texts, words, PassageRules(10, 24))
    assert plan.split_rule == "document"
    assert len({p.split for p in plan.passages if plan.documents[p.document].name in "ab"}) == 1


def test_short_texts_are_kept_whole_or_refused_with_both_numbers():
    texts = [document("a", 30, 0), document("b", 8, 100), document("c", 40, 200)]
    plan = cut_passages(texts, words, PassageRules(20, 3, min_tokens=5))
    assert sorted(len(p.token_ids) for p in plan.passages) == [8, 20, 20]
    with pytest.raises(InputError, match="b: the text has 8 tokens, a passage needs at least 10"):
        cut_passages(texts, words, PassageRules(20, 3, min_tokens=10))
    plan = cut_passages(texts, words, PassageRules(20, 2, min_tokens=10, skip_short=True))
    assert plan.skipped == (("b", "the text has 8 tokens, a passage needs at least 10"),)


@pytest.mark.parametrize("text", ["", " \n\t"])
def test_an_empty_text_is_refused_by_name_or_left_out_and_told(text):
    texts = [document("a", 300), TextDocument("void.txt", text, "0")]
    with pytest.raises(InputError, match="void.txt: the text is empty"):
        cut_passages(texts, words, PassageRules(10, 4))
    assert cut_passages(texts, words, PassageRules(10, 4, skip_short=True)).skipped == (
        ("void.txt", "the text is empty"),
    )
    with pytest.raises(InputError, match="no text long enough"):
        cut_passages(texts[1:], words, PassageRules(10, 4, skip_short=True))


def test_too_few_tokens_name_what_there_is_and_what_is_asked():
    with pytest.raises(
        InputError, match="split calibrate has 1 texts that hold 0 passages of 100 tokens, but 6 are asked"
    ):
        cut_passages([document("a", 300)], words, PassageRules(100, 24))


def test_bos_counts_among_the_tokens_of_every_passage():
    plan = cut_passages([document("p", 400)], words, PassageRules(10, 4), bos_id=-7)
    assert {len(p.token_ids) for p in plan.passages} == {10}
    for p in plan.passages:
        np.testing.assert_array_equal(p.token_ids, [-7, *range(p.start, p.start + 9)])


@settings(max_examples=120, deadline=None)
@given(
    st.lists(st.integers(5, 400), min_size=1, max_size=7),
    st.integers(5, 40),
    st.integers(1, 16),
    st.sampled_from(["auto", "document", "region"]),
    st.booleans(),
)
def test_passages_never_overlap_and_regions_of_two_splits_keep_their_gap(lengths, n_tokens, n_passages, split_by, bos):
    """Whatever the corpus: refused with a reason, or cut so that no token is in two passages."""
    texts = [document(f"d{i}", n, 1000 * i) for i, n in enumerate(lengths)]
    rules = PassageRules(n_tokens, n_passages, split_by=split_by, min_tokens=5)
    try:
        plan = cut_passages(texts, words, rules, bos_id=-1 if bos else None)
    except InputError:
        return
    assert json.dumps(spans(plan)) == json.dumps(spans(cut_passages(texts, words, rules, bos_id=-1 if bos else None)))
    assert tuple(split_counts(plan).values()) == tuple(passages_per_split(n_passages, rules.split_fractions).values())
    by_document = {}
    for split, owner, start, end in spans(plan, int(bos)):
        assert 0 <= start < end <= plan.documents[owner].n_tokens
        by_document.setdefault(owner, []).append((start, end, split))
    for places in by_document.values():
        for (_, end, split), (start, _, next_split) in zip(sorted(places), sorted(places)[1:], strict=False):
            assert start - end >= (0 if split == next_split else n_tokens)
    if plan.split_rule == "document":
        assert all(len({split for *_, split in places}) == 1 for places in by_document.values())
