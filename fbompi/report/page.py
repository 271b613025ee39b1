"""A report: one HTML page with its own style and script, nothing fetched, everything from files escaped."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

import fbompi
from fbompi.activity import activity
from fbompi.axes import AXES, along, label, unit
from fbompi.comparison import common, differences, grouped
from fbompi.errors import UserError
from fbompi.plots.figure import COLOURS, DASHES, names
from fbompi.report.content import MOST_CLIENTS, content, looks, script_safe
from fbompi.runs import Run
from fbompi.summary import page as summary_page

HERE = Path(__file__).parent
MOST_INCIDENTS = 500
FEW = 3  # runs that have room beside each other


def report(paths: Sequence[str | Path], out: Path) -> None:
    """Write the page of some runs, whole or not at all."""
    runs = [Run(path) for path in paths]
    text = page(runs, names([run.path for run in runs]))
    temporary = out.with_name(f".{out.name[:100]}.{os.getpid()}.partial")
    try:
        temporary.write_text(text, encoding="utf-8", errors="replace")
        os.replace(temporary, out)
    except OSError as e:
        temporary.unlink(missing_ok=True)
        raise UserError(f"{out}: cannot be written: {e.strerror or e}") from None


def page(runs: Sequence[Run], called: Sequence[str]) -> str:
    """The page as text."""
    style, script = ((HERE / name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    title = called[0] if len(runs) == 1 else f"{len(runs)} runs"
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'; form-action 'none'"
    )
    parts = [
        _head(runs, called), _curves(runs, called), _costs(runs, called), _timeline(runs, called),
        _differences(runs, called), _incidents(runs, called), _configurations(runs, called),
    ]  # fmt: skip
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)} – fbompi</title>
<style>{style}</style>
</head>
<body>
<main>
{"".join(parts)}
</main>
<footer>Written by fbompi {escape(fbompi.__version__)}. Nothing on this page is fetched from anywhere.</footer>
<script type="application/json" id="content">{script_safe(content(runs, called))}</script>
<script>{script}</script>
</body>
</html>
"""


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _head(runs: Sequence[Run], called: Sequence[str]) -> str:
    lines = [summary_page(run.summary).splitlines() for run in runs]
    if len(runs) == 1:
        words = "".join(f"<p>{escape(line)}</p>" for line in lines[0] if not line.startswith("  "))
        return f"<header><h1>{escape(called[0])}</h1>{words}</header>"
    items = "".join(f"<li><b>{escape(name)}</b> {escape(line[0])}</li>" for name, line in zip(called, lines))
    return f"<header><h1>{len(runs)} runs</h1><ul>{items}</ul></header>"


def _swatch(look: int) -> str:
    return (
        f'<svg class="swatch c{look % len(COLOURS)} d{look % len(DASHES)}" viewBox="0 0 26 10" width="26" height="10" '
        f'aria-hidden="true"><path class="line" d="M1 5H25"/></svg>'
    )


def _choice(name: str, words: str, options: Sequence[tuple[str, str]]) -> str:
    chosen = "".join(f'<option value="{escape(value)}">{escape(text)}</option>' for value, text in options)
    return f'<label for="{name}">{words}</label><select id="{name}">{chosen}</select>'


def _curves(runs: Sequence[Run], called: Sequence[str]) -> str:
    metrics = dict.fromkeys(name for run in runs for name in run.metrics)
    axes = [(name, label(name, unit(runs, name))) for name in AXES]
    shown = "".join(
        f'<li><label><input type="checkbox" class="run" value="{index}" checked>{_swatch(look)}'
        f"<span>{escape(name)}</span></label></li>"
        for index, (name, look) in enumerate(zip(called, looks(runs, called)))
    )
    return f"""<section aria-labelledby="curves-title">
<h2 id="curves-title">Metrics</h2>
<div class="controls">
<span>{_choice("metric", "Metric", [(name, name) for name in metrics])}</span>
<span>{_choice("axis", "against", axes)}</span>
<label><input type="checkbox" id="log-x">logarithmic x</label>
<label><input type="checkbox" id="log-y">logarithmic y</label>
</div>
<p id="meaning" class="note"></p>
<div class="plot"><svg id="curve" tabindex="0" role="img" aria-label="Curves of the chosen metric; left and right arrow
keys read values"></svg><div class="tip" id="curve-tip" hidden></div></div>
<p id="curve-live" class="unseen" aria-live="polite"></p>
<fieldset class="legend"{" hidden" * (len(runs) == 1)}><legend>Runs</legend><ul>{shown}</ul>
<span class="controls"><button type="button" id="all-runs">All</button>
<button type="button" id="no-runs">None</button></span>
</fieldset>
<noscript><p>The plots need JavaScript; the tables do not.</p></noscript>
</section>
"""


def _costs(runs: Sequence[Run], called: Sequence[str]) -> str:
    swatches = [_swatch(look) for look in looks(runs, called)]
    metrics = list(dict.fromkeys(name for run in runs for name in run.metrics))
    units = {"virtual s" if run.link == "virtual" else "s" for run in runs}
    ends, took, worked = [], [], []
    for run, name, swatch in zip(runs, called, swatches):
        costs, who = run.summary["costs"], f"{swatch} {escape(name)}"
        ends.append([who, *(_last(run, metric) for metric in metrics)])
        took.append([
            who, escape(str(run.config["run"]["algorithm"])), str(run.seed), escape(run.status), f"{run.rounds:,}",
            _whole(costs["communication"]), _time(run, len(units) > 1), _mega(costs["bytes_down"]),
            _mega(costs["bytes_up"]),
        ])  # fmt: skip
        worked.append([
            who, *(_whole(costs[name]) for name in ("gradients", "hvps", "crosses")), _seconds(costs["client_seconds"]),
            _seconds(costs["server_seconds"]), f"{run.summary['peak_memory'] / 1e3:,.0f}",
        ])  # fmt: skip
    time = "time" if len(units) > 1 else f"time ({units.pop()})"
    heads = {
        "Metrics at the end": ["run", *map(escape, metrics)],
        "What it took": ["run", "method", "seed", "status", "rounds", "communication", time, "MB to clients",
                         "MB back"],
        "Computing, gradients and products per sample": ["run", "gradients", "Hessian products", "cross products",
                                                         "clients’ seconds", "server’s seconds", "kB of a task"],
    }  # fmt: skip
    tables = "".join(
        _upright(caption, head, rows) for (caption, head), rows in zip(heads.items(), (ends, took, worked))
    )
    return (
        '<section aria-labelledby="costs-title"><h2 id="costs-title">At the end</h2>'
        f'<div class="beside">{tables}</div></section>\n'
    )


def _time(run: Run, with_unit: bool) -> str:
    last = along(run, "time")[-1] if len(run) else 0.0
    return f"{last:.4g}" + (f" {'virtual s' if run.link == 'virtual' else 's'}" if with_unit else "")


def _whole(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _mega(value: float | None) -> str:
    return "–" if value is None else f"{value / 1e6:,.2f}"


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def _last(run: Run, metric: str) -> str:
    known = run[metric][np.isfinite(run[metric])] if metric in run else np.empty(0)
    return f"{known[-1]:.5g}" if len(known) else "–"


def _upright(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table turned so that it is rather long than wide, as pages and phones are."""
    if len(rows) >= len(head) or len(rows) > FEW:
        return _table(caption, head, rows)
    top, *below = zip(head, *rows)
    return _table(caption, top, below)


def _table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "") -> str:
    """A table that scrolls on its own where it is too wide; its cells are HTML, escaped by whoever gives them."""
    top = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    body = "".join(
        f'<tr><th scope="row">{row[0]}</th>{"".join(f"<td>{cell}</td>" for cell in row[1:])}</tr>' for row in rows
    )
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{escape(caption)}"><table class="{kind}">'
        f"<caption>{escape(caption)}</caption><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _timeline(runs: Sequence[Run], called: Sequence[str]) -> str:
    seen = [(index, run, name) for index, (run, name) in enumerate(zip(runs, called)) if len(run.arrivals)]
    if not seen:
        return ""
    choice = _choice("lanes-run", "Run", [(str(index), name) for index, _, name in seen])
    tables = "".join(_clients(run, name) for _, run, name in seen)
    return f"""<section aria-labelledby="lanes-title">
<h2 id="lanes-title">Clients</h2>
<div class="controls"><span{" hidden" * (len(seen) == 1)}>{choice}</span>
<span role="group" aria-label="Zoom" id="zoom"><button type="button" id="zoom-in" aria-label="Zoom in">+</button>
<button type="button" id="zoom-out" aria-label="Zoom out">−</button>
<button type="button" id="earlier" aria-label="Earlier">←</button>
<button type="button" id="later" aria-label="Later">→</button>
<button type="button" id="whole">Whole run</button></span></div>
<p id="lanes-note" class="note" aria-live="polite"></p>
<ul class="key" id="key" aria-label="Key"><li><i class="k-way"></i>task under way</li>
<li id="k-compute"><i class="k-compute"></i>computing</li>
<li><i class="k-wait"></i>waiting for a task</li><li><i class="k-tick"></i>answer</li>
<li id="k-bad"><i class="k-bad">×</i>rejected</li><li id="k-left"><i class="k-left"></i>left out</li>
<li id="k-adopted"><i class="k-adopted">◆</i>adopted</li></ul>
<div class="plot"><svg id="lanes" tabindex="0" role="img" aria-label="Timeline, a lane per client; plus, minus, arrow
keys and Home zoom and move"></svg><div class="tip" id="lanes-tip" hidden></div></div>
<h3>Staleness</h3>
<p id="ages-note" class="note"></p>
<div class="plot"><svg id="ages" role="img" aria-label="Histogram of ages of answers"></svg></div>
{tables}
</section>
"""


def _clients(run: Run, name: str) -> str:
    """The timeline in figures, for those who cannot see it."""
    a = activity(run)
    table, rows = run.clients, []
    ends = np.array([0.0, a.end or 1.0])
    for client in a.shown(MOST_CLIENTS).tolist():
        mine = a.client == client
        taken = a.arrived[mine] - a.sent[mine]
        rows.append([
            str(client), f"{table['shard_size'][client]:,}", str(table["rank"][client]), f"{mine.sum():,}",
            f"{np.median(taken):.3g} s" if len(taken) else "–", f"{100 * a.share(client, ends)[0]:.0f} %",
            f"{a.rejected[mine].sum():,}", "yes" if client in a.slow else "", escape(str(table["state"][client])),
        ])  # fmt: skip
    head = ["client", "samples", "rank", "answers", "median time of an answer", "time with a task", "rejected",
            "straggler", "state"]  # fmt: skip
    some = f" ({len(rows)} of {a.clients:,})" if len(rows) < a.clients else ""
    caption = f"Clients of {name}{some}"
    return f"<details><summary>{escape(caption)}, in figures</summary>{_table(caption, head, rows)}</details>"


def _differences(runs: Sequence[Run], called: Sequence[str]) -> str:
    if len(runs) < 2:
        return ""
    each = [group for run in runs for group in grouped([run])]
    for group, run in zip(each, runs):
        group.keys = {"run.seed": run.seed, **group.keys}
    found = differences(each)
    shared, head = common(found), ["key", *map(escape, called)]
    shown: list[list[str]] = []
    others: list[list[str]] = []
    for key, values in found.items():
        cells = ["–" if value is None else escape(str(value)) for value in values]
        (shown if key in shared else others).append([f"<code>{escape(key)}</code>", *cells])
    body = _longer("Keys in which configurations differ", head, shown) if shown else ""
    if others:
        caption = "Keys that only some methods or problems have"
        body += f"<details><summary>{caption}</summary>{_longer(caption, head, others)}</details>"
    body = body or "<p>Nothing.</p>"
    return f'<section aria-labelledby="diff-title"><h2 id="diff-title">What differs</h2>{body}</section>\n'


def _longer(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of keys and runs: the one there are more of goes down."""
    if len(rows) + 1 >= len(head):
        return _table(caption, head, rows)
    (_, *top), *below = zip(head, *rows)
    return _table(caption, ["run", *top], below)


def _incidents(runs: Sequence[Run], called: Sequence[str]) -> str:
    parts = []
    for run, name in zip(runs, called):
        table = run.incidents
        if not len(table):
            continue
        columns: list[Any] = [list(table[key]) for key in ("time", "round", "what", "client", "rank", "text")]
        rows = [
            [f"{when:.4g}", str(round_), escape(str(what)), "" if client < 0 else str(client),
             "" if rank < 0 else str(rank), escape(str(text))]
            for when, round_, what, client, rank, text in list(zip(*columns))[:MOST_INCIDENTS]
        ]  # fmt: skip
        some = f" (the first {MOST_INCIDENTS} of {len(table):,})" if len(table) > len(rows) else ""
        caption = f"Incidents of {name}{some}"
        parts.append(
            _table(caption, ["time", "round of communication", "what", "client", "rank", "more"], rows, "words")
        )
    body = "".join(parts) or "<p>None: no rank was lost, no answer rejected.</p>"
    return f'<section aria-labelledby="inc-title"><h2 id="inc-title">Incidents</h2>{body}</section>\n'


def _configurations(runs: Sequence[Run], called: Sequence[str]) -> str:
    parts = []
    for run, name in zip(runs, called):
        lines = [f"{s}.{key} = {value!r}" for s, table in run.config.items() for key, value in table.items()]
        lines += [f"{key}: {value}" for key, value in run.attributes.items()]
        parts.append(f"<details><summary>{escape(name)}</summary><pre>{escape(chr(10).join(lines))}</pre></details>")
    title = '<h2 id="conf-title">Configurations</h2>'
    return f'<section class="folded" aria-labelledby="conf-title">{title}{"".join(parts)}</section>\n'
