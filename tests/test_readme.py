"""Every command and snippet of the README, run as it stands there."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language=""):
    """The fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def section(title):
    """The command lines of a section's first block, without comments."""
    text = README.split(f"\n## {title}\n", 1)[1]
    return commands(re.search(r"^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[1])


def snippet(title):
    """The first block of Python of a section."""
    text = README.split(f"\n## {title}\n", 1)[1]
    return re.search(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[1]


def run_snippet(title, folder):
    done = subprocess.run(
        [sys.executable, "-c", snippet(title)],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """A small run as `make demo` leaves one."""
    out = tmp_path_factory.mktemp("demo") / "demo"
    run(f"polykv replay data/smollm2-sample --out {out} --policy int8,kivi4 --ks 32,full -q", ROOT)
    return out


@pytest.fixture
def demo_place(demo, workplace):
    """A workplace where runs/demo and an earlier runs/last stand."""
    (workplace / "runs").mkdir()
    for name in ("demo", "last"):
        (workplace / "runs" / name).symlink_to(demo)
    return workplace


def commands(block):
    return [line for line in (re.sub(r"\s+#.*", "", raw).strip() for raw in block.splitlines()) if line]


@pytest.fixture
def workplace(tmp_path):
    """A folder that looks like the repository's root and where runs and captures may be left."""
    for name in ("data", "flows", "polykv", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def environment(**other):
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    settings = {"PREFECT_SERVER_ANALYTICS_ENABLED": "false", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}
    return {**os.environ, "PYTHONPATH": path, **settings, **other}


def argv_of(line):
    """A command line as it runs in this very environment."""
    words = shlex.split(line.removesuffix("&").strip())
    modules = {"polykv": "polykv", "python": None, "dask": "dask", "prefect": "prefect"}
    module = modules[words[0]]
    return [sys.executable, *(["-m", module] if module else []), *words[1:]]


def run(line, folder, **settings):
    done = subprocess.run(
        argv_of(line), cwd=folder, env=environment(**settings), capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, f"{line}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


RUN_HERE = (
    "Your own model", "Is a sparse dictionary worth it?", "What it costs the model", "A policy in your engine", "Receipts",
    "Query the tables", "Policies", "A policy for a budget", "On a cluster", "Schedule it", "In an experiment tracker",
)  # fmt: skip


def test_every_command_of_the_readme_is_known_here():
    """A command that no test below and no step of CI runs must not stand in the README."""
    run_here = [*(line for title in RUN_HERE for line in section(title)), *re_blocks("polykv inspect")]
    for line in (line for block in blocks() for line in commands(block)):
        if re.match(r"(polykv|python|dask|prefect|make|\.|export) ", line):
            assert line in run_here or re.fullmatch(r"make (demo|test|hf|tracking)", line), line


def test_every_snippet_of_the_readme_is_known_here():
    run_here = {"A policy in your engine", "A policy inside a transformers model", "Query the tables"}
    assert sorted(blocks("python")) == sorted(map(snippet, run_here))


def re_blocks(start):
    return [line for block in blocks() for line in commands(block) if line.startswith((start, "polykv verify"))]


def test_make_targets_of_the_readme_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"\bmake ([a-z][a-z-]*)\b", README)) & {"demo", "test", "hf", "tracking", "help"}:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


@pytest.mark.slow
def test_policies_and_show(workplace):
    first, second, fit, trained = section("Policies")
    run(first + " --serial -q --fail-on never", workplace)
    assert "keys4_values3 holds" in run(second, workplace)
    assert "runs/vq/residual_vq.policy.json" in run(fit + " -q", workplace)
    assert "residual_vq" in run(trained + " --serial -q --fail-on never", workplace)


def test_receipts(workplace):
    replayed, verified = section("Receipts")
    command, _, receipt = replayed.partition(" > ")
    (workplace / receipt).write_text(run(command, workplace), encoding="utf-8")
    assert "holds" in run(verified, workplace)


@pytest.mark.slow
def test_a_dictionary_judged_and_replayed(workplace):
    judge, replay = section("Is a sparse dictionary worth it?")
    assert "sparse dictionary:" in run(judge + " -q", workplace)
    assert "sparse holds" in run(replay + " -q --fail-on never", workplace)


@pytest.mark.slow
def test_the_queries_of_the_demo(demo_place):
    names, worst, cheapest, own, moved = section("Query the tables")
    listed = run(names, demo_place)
    for word in ("worst_cells", "cheapest_k", "pareto", "blockers", "run_diff", "certified"):
        assert word in listed
    assert len(run(worst, demo_place).splitlines()) == 1 + 5
    run(cheapest, demo_place)
    assert (demo_place / "cheapest.csv").read_text().startswith("layer,policy,")
    assert "int8" in run(own, demo_place)
    assert run(moved, demo_place) == "no rows\n"
    assert "cells_that_pass" in run_snippet("Query the tables", demo_place)


@pytest.mark.slow
def test_a_policy_goes_into_an_engine(demo_place):
    export, show, schema = section("A policy in your engine")
    run(export, demo_place)
    assert "of 15 compressed" in run(show, demo_place)
    assert '"$schema"' in run(schema, demo_place)
    assert run_snippet("A policy in your engine", demo_place).startswith("4 32 32 (1, 128) ")


@pytest.mark.slow
def test_a_sweep_on_a_cluster(workplace):
    *starters, sweep = section("On a cluster")
    started = []
    try:
        for line in starters:
            assert line.endswith("&")
            started.append(_start(argv_of(line), workplace))
            time.sleep(3)
        assert "int8 holds all" in run(sweep + " --policy int8 --ks full -q", workplace)
    finally:
        _stop(started)


@pytest.mark.slow
def test_a_schedule_fires_on_a_real_server(workplace):
    """The README's lines, at a free port and with a schedule that fires at once."""
    server, export, schedule = section("Schedule it")
    assert server == "prefect server start &"
    assert export == "export PREFECT_API_URL=http://127.0.0.1:4200/api"
    home = {"PREFECT_HOME": str(workplace / "prefect"), "PREFECT_API_URL": "http://127.0.0.1:4287/api"}
    started = [_start([*argv_of(server), "--port", "4287"], workplace, **home)]
    try:
        _wait_for("http://127.0.0.1:4287/api/health")
        often = schedule.replace('"0 3 * * *"', '"* * * * *"') + " --policy int8 --ks full"
        started.append(_start(argv_of(often), workplace, **home))
        _wait_until(lambda: (workplace / "runs/nightly/selection.parquet").exists(), seconds=420)
    finally:
        _stop(started[::-1])


@pytest.mark.hf
@pytest.mark.slow
def test_your_own_model(workplace):
    lines = section("Your own model")
    assert lines[0] == "make hf"
    for line in lines[2:]:
        run(line + (" -q --fail-on never" if "calibrate" in line else ""), workplace)
    for line in re_blocks("polykv inspect"):
        run(line, workplace)


@pytest.mark.hf
@pytest.mark.slow
def test_a_policy_for_a_budget(workplace):
    capture, search, show = section("A policy for a budget")
    run(f"{capture} --tokens 96 --passages 24 --queries 4 -q", workplace)
    assert "forward passes for the verdict" in run(f"{search} --dry-run", workplace)
    # a byte budget takes one trial where a perplexity takes several; tests/search has the loop on a small model
    one = search.replace("--budget-ppl 1% --minimise bytes", "--budget-bytes 4000 --minimise kl")
    assert one != search
    small = "--gradient-passages 1 --sensitivity-passages 1 --select-passages 1 --confirm-passages 6 -q --fail-on never"
    assert "runs/searched/searched.policy.json" in run(f"{one} {small}", workplace)
    assert "transform_pq" in run(show, workplace)


@pytest.mark.hf
@pytest.mark.slow
def test_what_it_costs_the_model(demo_place):
    certify, report = section("What it costs the model")
    said = run(certify + " -q --fail-on never", demo_place)
    assert "kivi4" in said
    assert "keys4_values3" in said
    assert (demo_place / "runs/certified/certify.parquet").exists()
    run(report, demo_place)
    assert "perplexity with the policy on" in (demo_place / "runs/demo/report.html").read_text()


@pytest.mark.hf
@pytest.mark.slow
def test_a_policy_inside_a_transformers_model(workplace):
    said = run_snippet("A policy inside a transformers model", workplace)
    assert re.fullmatch(r"\d+ tokens in \d+ bytes of codes, [\d.]+ times less than float16\n", said), said


@pytest.mark.tracking
@pytest.mark.slow
def test_in_an_experiment_tracker(workplace):
    make, *lines = section("In an experiment tracker")
    assert make == "make tracking"
    run("polykv replay data/smollm2-sample --out runs/demo --policy int8 --ks 64,full -q", workplace)
    for line in lines:
        assert "logged runs/demo to" in run(line, workplace)
    assert (workplace / "mlflow.db").exists()


def _start(argv, folder, **settings):
    return subprocess.Popen(
        argv,
        cwd=folder,
        env=environment(**settings),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _stop(processes):
    for process in processes:
        os.killpg(process.pid, signal.SIGTERM)
    for process in processes:
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_for(url):
    import urllib.error
    import urllib.request

    def answers():
        try:
            with urllib.request.urlopen(url, timeout=2) as reply:
                return reply.status == 200
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    _wait_until(answers, seconds=180)


def _wait_until(done, seconds):
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, f"nothing came within {seconds} s"
        time.sleep(1)
