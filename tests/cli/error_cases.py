"""The mistakes a user can make with every command, as command lines.

{places} stand for the good and bad files of the fixture `world` in test_user_errors.
"""

from __future__ import annotations

from typing import NamedTuple

BAD_INPUT, DAMAGED = 2, 3


class Case(NamedTuple):
    line: str
    code: int
    words: str


def stores(line):
    """A place where a capture store is expected: {} stands for it."""
    return [
        Case(line.format("{nothing}"), BAD_INPUT, "does not exist"),
        Case(line.format("''"), BAD_INPUT, "is empty; name"),
        Case(line.format("{text}"), BAD_INPUT, "is a file, a capture store is a directory"),
        Case(line.format("{run}"), BAD_INPUT, "is a run directory, not a capture store"),
        Case(line.format("{empty}"), BAD_INPUT, "does not exist or is empty"),
        Case(line.format("s4://bucket/store"), BAD_INPUT, "Protocol not known"),
        Case(line.format("{unsealed}"), DAMAGED, "never finished"),
    ]


def runs(line, without_results="has no table", torn=True):
    """A place where a finished run is expected: {} stands for it."""
    return [
        Case(line.format("{nothing}"), BAD_INPUT, "does not exist; a run directory was expected"),
        Case(line.format("''"), BAD_INPUT, "is empty; name one"),
        Case(line.format("{text}"), BAD_INPUT, "is a file; a run directory was expected"),
        Case(line.format("{store}"), BAD_INPUT, "is a capture store, no run directory"),
        Case(line.format("{empty}"), BAD_INPUT, "no run directory: it has no run.json"),
        Case(line.format("s3://bucket/run"), BAD_INPUT, "must be a path on a local or shared file system"),
        *([Case(line.format("{unfinished}"), DAMAGED, without_results)] if without_results else []),
        *([Case(line.format("{torn}"), DAMAGED, "cannot be read")] if torn else []),
    ]


def policies(line):
    """A place where a policy is expected: {} stands for it."""
    return [
        Case(line.format("two_teir"), BAD_INPUT, "did you mean 'two_tier'?"),
        Case(line.format("{nothing}.json"), BAD_INPUT, "No such file"),
        Case(line.format("{text}"), BAD_INPUT, "the name of a policy file ends in .json"),
        Case(line.format("{store}"), BAD_INPUT, "the name of a policy file ends in .json"),
        Case(line.format("{run}"), BAD_INPUT, "the name of a policy file ends in .json"),
        Case(line.format("{other}"), BAD_INPUT, "other.json: policy schema_version is None"),
        Case(line.format("{cut}"), BAD_INPUT, "not valid JSON"),
    ]


def files(line, other):
    """A place where a JSON file is expected: {} stands for it, `other` is said of another kind of JSON."""
    return [
        Case(line.format("{nothing}"), BAD_INPUT, "No such file"),
        Case(line.format("{text}"), BAD_INPUT, "not valid JSON"),
        Case(line.format("{store}"), BAD_INPUT, "Is a directory"),
        Case(line.format("{other}"), BAD_INPUT, other),
    ]


def sweeps(line):
    """The options of a sweep after `line`."""
    told = {
        "--ks a": "neither a whole number",
        "--ks 0": "must decode at least 1 value",
        "--ks ''": "candidate_ks must not be empty",
        "--gate cosine": "metrics: output_cosine_mean",
        "--gate cosine>=1": "no gate can be set on 'cosine'",
        "--gate output_cosine_mean>=nan": "must be finite",
        "--gate output_cosine_mean>=2": "output_cosine_mean",
        "--gate label_kl_mean<=1": "holds no logits",
        "--shared-tokens 0": "must be at least 1",
        "--shared-tokens 48": "must be below the 48 tokens",
        "--shared-tokens x": "not a valid integer",
        "--seed -1": "must be a whole number ≥ 0",
        "--ks-per-job 0": "must be at least 1",
        "--layers 0,7-9": "layer 7 is not in the capture; {store} has 0, 5",
        "--layers 9-7": "ends before it begins",
        "--layers x": "for example 0,7-9",
        "--workers 2": "exclude each other",
        "--policy ''": "no policy to sweep",
        "--policy int8,int8": "two policies are named 'int8'",
        "--fail-on sometimes": "not one of",
        "--polcy int8": "No such option",
        "--out {text}": "is a file; a run directory must be a folder",
        "--out {store}": "holds other files",
        "--out s3://bucket/run": "must be a path",
        "--out {long}": "File name too long",
        "--out {run}": "another configuration",
    }
    cases = [Case(f"{line} --serial --out {{out}} {options}", BAD_INPUT, words) for options, words in told.items()]
    return [*cases, Case(f"{line} --out {{out}} --scheduler here", BAD_INPUT, "known: serial, local")]


# Without torch (make hf) the last of these checks says so; with it, that there is no such model.
NO_MODEL = "torch is missing|has no config.json|no directory|does not exist"


def captures(line):
    """The options of a capture after `line`."""
    told = {
        "": "--model is missing",
        "--model m": "--corpus is missing",
        "--model m --corpus {nothing}": "matches no file",
        "--model m --corpus {empty}": "is a directory; write",
        "--model m --corpus confirm:{text} --corpus {text}": "does not",
        "--model m --corpus {text} --tokens 8": "--tokens 16 or more",
        "--model m --corpus {text} --tokens x": "not a valid integer",
        "--model m --corpus {text} --passages 0": "must be an integer ≥ 1",
        "--model m --corpus {text} --queries 0": "must be an integer ≥ 1",
        "--model m --corpus {text} --labels -1": "must be an integer ≥ 0",
        "--model m --corpus {text} --labels 4": "--labels 8 or more",
        "--model m --corpus {text} --layers x": "for example 0,7-9",
        "--model m --corpus {text} --layers 1 --layer-stride 2": "choose one",
        "--model m --corpus {text} --layer-stride 0": "must be an integer ≥ 1",
        "--model m --corpus {text} --batch-size 0": "must be an integer ≥ 1",
        "--model m --corpus {text} --dtype int8": "not one of",
        "--model {nothing}.gguf --corpus {text}": NO_MODEL,
        "--model {empty} --corpus {text}": NO_MODEL,
    }
    return [Case(f"{line} --out {{out}} {options}", BAD_INPUT, words) for options, words in told.items()]


CASES = {
    "calibrate": [
        *stores("calibrate --serial --out {{out}} --store {}"),
        *policies("calibrate --store {{store}} --serial --out {{out}} --policy {}"),
        *sweeps("calibrate --store {store}"),
        *captures("calibrate"),
        Case("calibrate --store {store}", BAD_INPUT, "--out"),
        Case("calibrate --store {store} --model m --out {out}", BAD_INPUT, "--store and --model are both given"),
        Case("calibrate --store {store} --corpus {text} --out {out}", BAD_INPUT, "--store and --corpus are both given"),
        Case("calibrate --model m --corpus {text} --policy two_teir --out {out}", BAD_INPUT, "did you mean"),
        Case("calibrate --model m --corpus {text} --out {text}", BAD_INPUT, "is a file; a run directory"),
        Case("calibrate --model m --corpus {text} --gate x --out {out}", BAD_INPUT, "metrics: output_cosine_mean"),
    ],
    "capture": [
        *captures("capture"),
        Case("capture --model m --corpus {text}", BAD_INPUT, "--out"),
        Case("capture --model m --corpus {text} --out {store}", BAD_INPUT, "nothing is overwritten"),
        Case("capture --model m --corpus {text} --out {run}", BAD_INPUT, "nothing is overwritten"),
        Case("capture --model m --corpus {text} --out {text}", BAD_INPUT, "is a file"),
    ],
    "certify": [
        *policies("certify --model m --corpus {{text}} --policy {}"),
        *stores("certify --model m --policy int8 --store {}"),
        Case("certify --policy int8 --corpus {text}", BAD_INPUT, "--model"),
        Case("certify --model m --corpus {text}", BAD_INPUT, "--policy"),
        Case("certify --model m --policy int8", BAD_INPUT, "nothing to evaluate on"),
        Case("certify --model m --corpus {text} --policy int8,two_teir", BAD_INPUT, "did you mean 'two_tier'?"),
        Case("certify --model m --corpus {text} --policy ,", BAD_INPUT, "no policy"),
        Case("certify --model m --policy int8 --corpus {nothing}", BAD_INPUT, "matches no file"),
        Case("certify --model m --policy int8 --corpus {text} --passages 0", BAD_INPUT, "must be an integer ≥ 1"),
        Case("certify --model m --policy int8 --corpus {text} --tokens 1", BAD_INPUT, "must be an integer ≥ 8"),
        Case("certify --model m --policy int8 --corpus {text} --shared-tokens 512", BAD_INPUT, "must be 1 to 511"),
        Case("certify --model m --policy int8 --corpus {text} --score-from 0", BAD_INPUT, "must be 1 to 511"),
        Case("certify --model m --policy int8 --corpus {text} --bucket 0", BAD_INPUT, "must be an integer ≥ 1"),
        Case("certify --model m --policy int8 --corpus {text} --max-ppl-increase x", BAD_INPUT, "a percentage"),
        Case("certify --model m --policy int8 --corpus {text} --max-kl -1", BAD_INPUT, "must be finite and ≥ 0"),
        Case("certify --model m --policy int8 --corpus {text} --seed -1", BAD_INPUT, "must be an integer ≥ 0"),
        Case("certify --model m --policy int8 --corpus {text} --out {text}", BAD_INPUT, "is a file; a run directory"),
        Case("certify --model m --policy int8 --corpus {text} --out {store}", BAD_INPUT, "holds other files"),
        Case("certify --model {empty} --policy int8 --corpus {text}", BAD_INPUT, NO_MODEL),
    ],
    "gonogo": [
        *stores("gonogo --serial --out {{out}} {}"),
        Case("gonogo {store}", BAD_INPUT, "--out"),
        Case("gonogo {store} --serial --out {out} --layers 9", BAD_INPUT, "layer 9 is not in the capture"),
        Case("gonogo {store} --serial --out {out} --layers x", BAD_INPUT, "for example 0,7-9"),
        Case("gonogo {store} --serial --out {out} --atoms 0", BAD_INPUT, "must be at least 1"),
        Case("gonogo {store} --serial --out {out} --atoms x", BAD_INPUT, "--atoms is 'x'"),
        Case("gonogo {store} --serial --out {out} --sparsity 999", BAD_INPUT, "999 > n_atoms 256"),
        Case("gonogo {store} --serial --out {out} --iterations 0", BAD_INPUT, "must be at least 1"),
        Case("gonogo {store} --serial --out {out} --method best", BAD_INPUT, "not one of"),
        Case("gonogo {store} --serial --out {out} --seed -1", BAD_INPUT, "must be at least 0"),
        Case("gonogo {store} --serial --out {text}", BAD_INPUT, "is a file"),
        Case("gonogo {store} --serial --out {run}", BAD_INPUT, "another configuration"),
        Case("gonogo {store} --out {out} --workers 0", BAD_INPUT, "at least 1"),
    ],
    "inspect": [*stores("inspect {}"), Case("inspect", BAD_INPUT, "STORE")],
    "log": [
        *runs("log --to mlflow --dry-run {}", "no table yet"),
        Case("log {run}", BAD_INPUT, "--to"),
        Case("log {run} --to mlfow", BAD_INPUT, "did you mean 'mlflow'?"),
        Case("log {run} --to wandb --project ' '", BAD_INPUT, "needs a name"),
    ],
    "policy export": [
        *runs("policy export --policy int8 {}"),
        Case("policy export {run}", BAD_INPUT, "choose one with --policy"),
        Case("policy export {run} --policy int9", BAD_INPUT, "did you mean 'int8'?"),
        Case("policy export {run} --policy int8 --format yaml", BAD_INPUT, "not one of"),
        Case("policy export {run} --policy int8 --otherwise drop", BAD_INPUT, "not one of"),
        Case("policy export {run} --policy int8 -o {out}.txt", BAD_INPUT, "must end in .json"),
        Case("policy export {run} --policy int8 -o {nothing}/p.json", BAD_INPUT, "cannot be written"),
    ],
    "policy fit": [
        *stores("policy fit --out {{out}} {}"),
        Case("policy fit {store}", BAD_INPUT, "--out"),
        Case("policy fit {store} --out {out} --stages 0", BAD_INPUT, "from 1 to 64"),
        Case("policy fit {store} --out {out} --bits 9", BAD_INPUT, "from 5 to 8"),
        Case("policy fit {store} --out {out} --metric fisher", BAD_INPUT, "'output_error', 'plain'"),
        Case("policy fit {store} --out {out} --layers 9", BAD_INPUT, "layer 9 is not in the capture"),
        Case("policy fit {store} --out {out} --sinks 999", BAD_INPUT, "lower --sinks"),
        Case("policy fit {store} --out {text}", BAD_INPUT, "is a file"),
        Case("policy fit {store} --out {text}/sub", BAD_INPUT, "is a file"),
        Case("policy fit {store} --out s3://bucket/here", BAD_INPUT, "must be a path"),
        Case("policy fit {store} --out {out} --dry-run --name ''", BAD_INPUT, "needs a name"),
        Case(f"policy fit {{store}} --out {{out}} --dry-run --name {'x' * 201}", BAD_INPUT, "can hold 200"),
    ],
    "policy schema": [Case("policy schema more", BAD_INPUT, "unexpected extra argument")],
    "policy search": [
        *stores("policy search --model smollm2 --out {{out}} {}"),
        Case("policy search {store} --out {out}", BAD_INPUT, "--model"),
        Case("policy search {store} --model smollm2", BAD_INPUT, "--out"),
        Case("policy search {store} --model m --out {out} --budget-ppl 1% --budget-bytes 9", BAD_INPUT, "both given"),
        Case("policy search {store} --model m --out {out} --budget-ppl much", BAD_INPUT, "--budget-ppl is 'much'"),
        Case("policy search {store} --model m --out {out} --budget-ppl none", BAD_INPUT, "needs a budget"),
        Case("policy search {store} --model m --out {out} --budget-ppl -1%", BAD_INPUT, "must be > 0"),
        Case("policy search {store} --model m --out {out} --budget-bytes 0", BAD_INPUT, "must be > 0"),
        Case("policy search {store} --model m --out {out} --minimise kl", BAD_INPUT, "does not go with this budget"),
        Case("policy search {store} --model m --out {out} --min-cosine 2", BAD_INPUT, "must be in (0, 1)"),
        Case("policy search {store} --model m --out {out} --max-passes 0", BAD_INPUT, "must be at least 1"),
        Case("policy search {store} --model m --out {out} --floor-bytes 99", BAD_INPUT, "at most 32"),
        Case("policy search {store} --model m --out {out} --name ''", BAD_INPUT, "needs a name"),
        Case("policy search {store} --model m --out {out} --reuse {nothing}", BAD_INPUT, "does not exist"),
        Case("policy search {store} --model m --out {out} --reuse {run}", BAD_INPUT, "is no run of a search"),
        Case("policy search {store} --model m --out {out} --rate variable", BAD_INPUT, "known: fixed, entropy"),
        Case("policy search {store} --model m --out {out} --metric guess", BAD_INPUT, "'fisher', 'output'"),
        Case("policy search {store} --model m --out {out} --gradient-passages 0", BAD_INPUT, "must be at least 1"),
        Case("policy search {store} --model m --out {out} --unselected kept", BAD_INPUT, "'drop', 'mean'"),
        Case("policy search {store} --model m --out {out} --sensitivities all", BAD_INPUT, "'layers', 'heads', 'none'"),
        Case(
            "policy search {store} --model m --out {out} --metric output --sensitivities none", BAD_INPUT, "cannot be"
        ),
        Case("policy search {store} --model {nothing} --out {out}", BAD_INPUT, NO_MODEL),
        Case("policy search {store} --model m --out s3://bucket/run", BAD_INPUT, "must be a path"),
    ],
    "policy show": [*policies("policy show {}"), Case("policy show", BAD_INPUT, "FILE")],
    "query": [
        *runs("query {} worst_cells"),
        *runs("query {{run}} run_diff --against {}"),
        *runs("query {}", without_results=None, torn=False),
        Case("query {run} worst_cels", BAD_INPUT, "did you mean 'worst_cells'?"),
        Case("query {run} gonogo", DAMAGED, "no table 'gonogo'; it has controls, results, selection"),
        Case("query {run} run_diff", BAD_INPUT, "--against RUN"),
        Case("query {run} --sql 'selec'", BAD_INPUT, "DuckDB refuses this SQL"),
        Case("query {run} --sql 'select * from nope'", BAD_INPUT, "Table with name nope does not exist"),
        Case("query {run} --sql 'select nope from results'", BAD_INPUT, '"nope" not found'),
        Case("query {run} --sql 'drop table results'", BAD_INPUT, "not a question"),
        Case("query {run} --sql ''", BAD_INPUT, "the SQL is empty"),
        Case("query {run} pareto --sql 'select 1'", BAD_INPUT, "give one"),
        Case("query {run} pareto --limit -1", BAD_INPUT, "--limit is -1"),
        Case("query {run} pareto --limit x", BAD_INPUT, "not a valid integer"),
        Case("query {run} pareto --csv --json", BAD_INPUT, "give one"),
        Case("query {run} pareto --parquet", BAD_INPUT, "--out FILE"),
        Case("query {run} pareto -o {out}.txt", BAD_INPUT, "ends in none of"),
        Case("query {run} pareto --csv -o {nothing}/p.csv", BAD_INPUT, "there is no folder"),
        Case("query {run} pareto --csv -o {empty}", BAD_INPUT, "cannot be written"),
    ],
    "receipt export": [
        *stores("receipt export --layer 0 --head 0 --out {{out}}.json {}"),
        Case("receipt export {store} --head 0 --out {out}.json", BAD_INPUT, "--layer"),
        Case("receipt export {store} --layer 9 --head 0 --out {out}.json", BAD_INPUT, "layer 9 is not in the capture"),
        Case("receipt export {store} --layer 0 --head 9 --out {out}.json", BAD_INPUT, "has KV heads 0 to 1, not 9"),
        Case("receipt export {store} --layer 0 --head 0 --passage 99 --out {out}.json", BAD_INPUT, "passages 0 to 13"),
        Case("receipt export {store} --layer 0 --head 0 --out {out}.json", BAD_INPUT, "--synthetic-projection"),
        Case("receipt export {store} --layer 0 --head 0 --synthetic-projection --queries 9 --out {out}.json", BAD_INPUT, "9 queries asked for"),
        Case("receipt export {store} --layer 0 --head 0 --synthetic-projection --queries 0 --out {out}.json", BAD_INPUT, "0"),
        Case("receipt export {store} --layer 0 --head 0 --synthetic-projection --queries 2 --q-head 9 --out {out}.json", BAD_INPUT, "9"),
        Case("receipt export {store} --layer 0 --head 0 --synthetic-projection --queries 2 --shared-tokens 999 --out {out}.json", BAD_INPUT, "999"),
        Case("receipt export {store} --layer 0 --head 0 --synthetic-projection --queries 2 --out {nothing}/f.json", BAD_INPUT, "f.json"),
    ],
    "receipt replay": [
        *files("receipt replay {}", "a fixture has no field 'a'"),
        *policies("receipt replay {{fixture}} --policy {}"),
        Case("receipt replay {fixture} --ks a", BAD_INPUT, "neither a whole number"),
        Case("receipt replay {fixture} --min-output-cosine x", BAD_INPUT, "not a valid float"),
        Case("receipt replay {fixture} --min-output-cosine nan", BAD_INPUT, "must be finite"),
        Case("receipt replay {fixture} --out {empty}", BAD_INPUT, "cannot be written"),
        Case("receipt replay {fixture} --out {nothing}/r.json", BAD_INPUT, "cannot be written"),
    ],
    "receipt show": [
        *runs("receipt show --layer 0 --head 0 --policy int8 {}"),
        Case("receipt show {run} --head 0", BAD_INPUT, "--layer"),
        Case("receipt show {run} --layer 9 --head 0", BAD_INPUT, "has no row of layer 9, KV head 0"),
        Case("receipt show {run} --layer 0 --head 9", BAD_INPUT, "has no row of layer 0, KV head 9"),
        Case("receipt show {run} --layer 0 --head 0", BAD_INPUT, "choose one with --policy"),
        Case("receipt show {run} --layer 0 --head 0 --policy int9", BAD_INPUT, "no policy 'int9'"),
        Case("receipt show {run} --layer 0 --head 0 --split all", BAD_INPUT, "not one of"),
        Case("receipt show {run} --layer 0 --head 0 --policy int8 --out {nothing}/r.json", BAD_INPUT, "cannot be written"),
    ],
    "receipt verify": [
        *files("receipt verify {}", "is no receipt"),
        *files("receipt verify {{receipt}} --fixture {}", "a fixture has no field 'a'"),
        Case("receipt verify {receipt} --run {run}", BAD_INPUT, "it is not of a run"),
        Case("receipt verify {receipt} --pool {empty}", BAD_INPUT, "is checked against --fixture, --policy, --run"),
        Case("receipt verify {receipt} --policy int8", BAD_INPUT, "--policy needs --fixture"),
        Case("receipt verify {receipt} --shell {empty}", BAD_INPUT, "--shell needs --pool"),
        Case("receipt verify {untrue}", DAMAGED, "output_cosine_mean"),
    ],
    "replay": [
        *stores("replay --serial --out {{out}} {}"),
        *policies("replay {{store}} --serial --out {{out}} --policy {}"),
        *sweeps("replay {store}"),
        Case("replay --out {out}", BAD_INPUT, "STORE"),
        Case("replay {store}", BAD_INPUT, "--out"),
    ],
    "report": [
        *runs("report {}", "no table yet"),
        *runs("report {{run}} {}", "no table yet"),
        *runs("report {{run}} --with {}", "no table yet"),
        Case("report", BAD_INPUT, "RUN"),
        Case("report {run} {run} {run}", BAD_INPUT, "3 runs are given"),
        Case("report {run} --with {run}", DAMAGED, "holds no certification"),
        Case("report {run} {run} --with {run}", BAD_INPUT, "--with goes with one run"),
        Case("report {run} -o {empty}", BAD_INPUT, "is a folder"),
        Case("report {run} -o {nothing}/r.html", BAD_INPUT, "there is no folder"),
        Case("report {run} -o {long}", BAD_INPUT, "File name too long"),
    ],
    "runs": [
        Case("runs {nothing}", BAD_INPUT, "is no folder"),
        Case("runs {text}", BAD_INPUT, "is no folder"),
        Case("runs {store}", BAD_INPUT, "is a capture store"),
        Case("runs {nothing} --prune", BAD_INPUT, "is no folder"),
        Case("runs s3://bucket/runs", BAD_INPUT, "must be a path"),
        Case("runs {empty} --dry-run", BAD_INPUT, "--dry-run goes with --prune"),
    ],
    "show": [*runs("show {}"), Case("show", BAD_INPUT, "RUN")],
    "tables": [
        Case("tables result", BAD_INPUT, "did you mean 'results'?"),
        Case("tables results selection", BAD_INPUT, "unexpected extra argument"),
    ],
    "verify": [*stores("verify {}"), Case("verify", BAD_INPUT, "STORE")],
}  # fmt: skip
