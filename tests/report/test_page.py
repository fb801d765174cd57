"""The HTML of a report: complete, escaped, valid, and saying the run's numbers."""

import builtins
import re
from html.parser import HTMLParser

import pytest

from polykv.errors import InputError, MissingExtraError, StoreError
from polykv.report.markup import Html, escape, tag
from polykv.report.page import report_page
from polykv.report.provenance import command_of
from polykv.report.tables import RunTables
from polykv.report_stages import report_stage
from tests.report.run_samples import KS, error_of, write_run

VOID = {"br", "meta", "link", "input", "col"}


class Checked(HTMLParser):
    """Reads a page: unbalanced tags, repeated ids, references, and text by tag."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.ids, self.loaded, self.text = [], [], [], {}
        self.feed(text)
        self.close()

    def handle_starttag(self, name, attributes):
        found = dict(attributes)
        self.ids += [found["id"]] if "id" in found else []
        self.loaded += [found[key] for key in ("src", "srcset", "data") if key in found]
        self.loaded += [found["href"]] if name == "link" else []
        if name not in VOID:
            self.open.append(name)

    def handle_endtag(self, name):
        assert self.open[-1] == name, (self.open, name)
        self.open.pop()

    def handle_data(self, data):
        place = self.open[-1] if self.open else ""
        self.text[place] = self.text.get(place, "") + data


@pytest.fixture(scope="module")
def page(sample_run):
    return report_page(RunTables.read(sample_run))


@pytest.fixture(scope="module")
def read(page):
    return Checked(page)


def test_a_page_is_balanced_and_its_ids_are_its_own(read):
    assert read.open == []
    assert len(read.ids) == len(set(read.ids))


def test_a_page_loads_nothing(page, read):
    assert read.loaded == []
    assert not re.search(r"url\((?!#)", page)
    assert "@import" not in page
    assert set(re.findall(r"https?://[^\"' )]+", page)) <= {"http://www.w3.org/2000/svg"}


def test_the_verdict_stands_first(read):
    assert read.text["h1"] == (
        "Yes: int8 keeps the cache of tiny <model> & co in 52 % of float16's bytes, and all 6 KV heads stay within the "
        "quality limits."
    )


def test_names_from_outside_are_escaped(page):
    assert "<model>" not in page
    assert "tiny &lt;model&gt; &amp; co" in page


def test_every_reference_inside_the_page_leads_somewhere(page, read):
    wanted = set(re.findall(r'(?:href="#|url\(#)([^")]+)', page))
    wanted |= set(re.findall(r'aria-labelledby="([^"]+)"', page))
    assert wanted <= set(read.ids)


def test_maps_have_a_cell_a_head_layer_policy_and_figure(page):
    assert len(re.findall(r'<td class="[^"]+" title="layer \d+, head \d+, ', page)) == 6 * 3 * 3
    assert page.count('tabindex="0"><span aria-hidden="true">') == 3 * 3  # one stop a map; arrows go on


def test_cells_say_their_numbers(page):
    k = next(k for k in KS if error_of("int8", 7, 1, k) <= 0.05)
    error = error_of("int8", 7, 1, k)
    words = f"layer 7, head 1, int8: pass; candidate_k {k}; cosine {1 - error**2 / 4:.5f}"
    assert words in page
    assert f"relative error {error:.4f} [{0.9 * error:.4f}, {1.1 * error:.4f}]" in page
    assert "sinks and window alone reach cosine 0.9100" in page
    assert "reason: no_candidate_k_passes_on_select" in page


def test_colours_of_plots_are_the_pages(page):
    assert "var(--series-1)" in page
    assert not re.search(r"#01020[1-8]|#01010[1-5]", page)


def test_plots_are_deterministic(sample_run, page):
    assert report_page(RunTables.read(sample_run)) == page


def test_controls_and_provenance(sample_run, page, read):
    assert "12 of 12" in read.text["td"]
    state = RunTables.read(sample_run).state
    for digest in (state["config_digest"], *state["outputs"].values()):
        assert digest in page


def test_the_command_is_the_one_that_ran(sample_run):
    run = RunTables.read(sample_run)
    assert command_of(run) == (
        "polykv replay STORE --out RUN --policy int8,rough,exact --ks 8,16,32,64 --gate 'output_cosine_mean>=0.999' "
        "--gate 'output_relative_error_mean<=0.05' --seed 42"
    )


def test_failed_cells_are_told(tmp_path):
    run = write_run(tmp_path / "run", fail=[(3, 1, "int8")])
    text = report_page(RunTables.read(run))
    assert "the worker ran out of memory" in text
    assert "v-failed" in text
    assert "Not everywhere" in text


def test_null_figures_read_as_dashes(tmp_path):
    nothing = dict.fromkeys(("output_cosine_mean", "output_cosine_low", "output_cosine_high", "output_relative_error_mean", "output_relative_error_low", "output_relative_error_high"))  # fmt: skip
    run = write_run(tmp_path / "run", change=nothing | {"verdict": "fail", "blockers": [{"gate": "output_cosine_mean", "value": None, "limit": 0.999}]})  # fmt: skip
    text = report_page(RunTables.read(run))
    assert "output_cosine_mean – (limit 0.999)" in text
    assert "None" not in text
    assert "nan" not in re.sub(r"<style>.*?</style>|<script>.*?</script>", "", text, flags=re.DOTALL).lower().split()


def test_a_run_without_tables_is_refused(tmp_path):
    run = write_run(tmp_path / "run")
    for file in run.glob("*.parquet"):
        file.unlink()
    with pytest.raises(StoreError, match="no table yet"):
        report_stage(run)


def test_a_report_needs_matplotlib_and_says_how_to_get_it(sample_run, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.split(".")[0] == "matplotlib":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"polykv\[analysis\]"):
        report_page(RunTables.read(sample_run))


def test_a_report_stands_in_the_run_or_where_asked(sample_run, tmp_path):
    assert report_stage(sample_run).name == "report.html"
    assert report_stage(sample_run, out=tmp_path / "mine.html").stat().st_size < 1_000_000
    with pytest.raises(InputError, match="there is no folder"):
        report_stage(sample_run, out=tmp_path / "no" / "mine.html")
    with pytest.raises(InputError, match="is a folder"):
        report_stage(sample_run, out=tmp_path)


def test_a_comparison_says_what_moved(sample_run, tmp_path):
    worse = write_run(tmp_path / "b", change={"output_cosine_mean": 0.5}, seed=43)
    text = Checked(report_stage(worse, sample_run, tmp_path / "c.html").read_text())
    assert text.open == []
    assert text.text["h1"] == "Of 18 cells × policies 18 worse than the baseline's 95 % interval allows."
    assert "The runs differ in: sweep." in text.text["p"]


def test_runs_without_a_common_cell_are_not_compared(sample_run, tmp_path):
    other = write_run(tmp_path / "b", layers=(50,))
    with pytest.raises(InputError, match="share no cell"):
        report_stage(other, sample_run, tmp_path / "c.html")


@pytest.mark.parametrize(("value", "shown"), [("<b>", "&lt;b&gt;"), (Html("<b>"), "<b>"), (None, "–"), (0, "0")])
def test_escaping(value, shown):
    assert escape(value) == shown


def test_attributes_are_escaped_and_left_out():
    assert tag("p", "x", title='"<&', hidden=False, lang=None, open_=True) == '<p title="&quot;&lt;&amp;" open>x</p>'
