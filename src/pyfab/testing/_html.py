"""A report as one page that needs nothing else: no script, no font, no picture from elsewhere."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from pyfab.bench._facts import remarks
from pyfab.testing._expect import size_text

_STYLE = """
:root { color-scheme: light; --line: #e5e7eb; --soft: #6b7280; --good: #047857; --bad: #b91c1c; --none: #92400e; }
body { font: 15px/1.5 system-ui, sans-serif; color: #111827; background: #f9fafb; margin: 0; }
main { max-width: 1180px; margin: 0 auto; padding: 24px 20px 60px; }
h1 { font-size: 26px; margin: 0; } h2 { font-size: 18px; margin: 34px 0 10px; }
.verdict { border-left: 8px solid var(--good); background: #fff; padding: 16px 20px; border-radius: 6px; }
.verdict.bad { border-color: var(--bad); }
.soft { color: var(--soft); } .good { color: var(--good); } .bad { color: var(--bad); } .none { color: var(--none); }
.counts span { display: inline-block; margin-right: 18px; font-weight: 600; }
.wide { overflow-x: auto; background: #fff; border: 1px solid var(--line); border-radius: 6px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { text-align: left; vertical-align: top; padding: 6px 12px; border-top: 1px solid var(--line); }
tr:first-child > * { border-top: 0; } th { font-weight: 600; } th.number { text-align: right; } thead th { background: #f3f4f6; }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.plots { display: grid; margin-bottom: 16px; grid-template-columns: repeat(auto-fill, minmax(min(440px, 100%), 1fr)); gap: 16px; }
figure { margin: 0; background: #fff; border: 1px solid var(--line); border-radius: 6px; padding: 12px; }
figcaption { font-weight: 600; font-size: 14px; margin-bottom: 6px; } svg { width: 100%; height: auto; }
details { background: #fff; border: 1px solid var(--line); border-radius: 6px; margin: 8px 0; }
summary { cursor: pointer; padding: 8px 12px; } details .wide { border: 0; border-top: 1px solid var(--line); }
pre { margin: 0; padding: 12px; white-space: pre-wrap; font-size: 13px; border-top: 1px solid var(--line); background: #fef2f2; }
code { font-size: 13px; }
"""
_CLASS = {
    "passed": "good",
    "failed": "bad",
    "error": "bad",
    "skipped": "none",
    "xfailed": "none",
    "xpassed": "bad",
}
_MACHINE = ("host", "cpu", "cores", "memory_gib", "kernel", "python", "numpy", "pyfab")


def page(found: dict[str, Any]) -> str:
    """The whole page."""
    good = found["exit_status"] == 0
    verdict = "passed" if good else "failed"
    sections = [
        _failures(found),
        _links(found),
        _machines(found),
        _performance(found),
        _soaks(found),
        _drills(found),
        _tests(found),
    ]
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>pyfab validation: {verdict}</title>
<style>{_STYLE}</style>
</head>
<body><main>
<div class="verdict {"" if good else "bad"}">
<h1>Validation <span class="{"good" if good else "bad"}">{verdict}</span></h1>
<p class="counts">{_counts(found)}</p>
<p class="soft">{escape(found["began"])}, {found["seconds"]:g} s, pyfab {escape(found["pyfab"])}<br>
<code>pytest {escape(shlex.join(found["arguments"]))}</code></p>
</div>
{"".join(sections)}
</main></body>
</html>
"""


def _counts(found: dict[str, Any]) -> str:
    counts = [(name, number) for name, number in found["counts"].items() if number]
    return "".join(f'<span class="{_CLASS[name]}">{number} {name}</span>' for name, number in counts) or (
        '<span class="bad">no test ran</span>'
    )


def _failures(found: dict[str, Any]) -> str:
    failed = [test for test in found["tests"] if _CLASS[test["outcome"]] == "bad"]
    return _section(
        "What failed",
        *(
            f'<details open><summary><b class="bad">{test["outcome"]}</b> <code>{escape(test["name"])}</code></summary>'
            f"<pre>{escape(test['message'])}</pre></details>"
            for test in failed
        ),
    )


def _links(found: dict[str, Any]) -> str:
    names = ("links", "peer", "link", "how", "why")
    return _section("Links", _table(names, ([row[name] for name in names] for row in found["links"])))


def _machines(found: dict[str, Any]) -> str:
    machines = found["machines"]
    rows = [
        [_on_one_line(name.replace("_gib", ", GiB")), *(str(m[name]) for m in machines.values())]
        for name in _MACHINE
    ]
    rows.append(["providers", *(_providers(machine) for machine in machines.values())])
    rows.append(["limited", *(_limited(machine) for machine in machines.values())])
    busy = "".join(f"<p>{escape(remark)}</p>" for remark in remarks(machines))
    return _section("Machines", _table(("", *machines), rows) + busy if machines else "")


def _providers(machine: dict[str, Any]) -> str:
    return ", ".join(f"{p['provider']}:{p['domain']}" for p in machine["providers"] if p["usable"])


def _limited(machine: dict[str, Any]) -> str:
    return (
        "; ".join(f"{c['name']}: {c['found']}" for c in machine["checks"] if c["state"] != "ok") or "nothing"
    )


def _performance(found: dict[str, Any]) -> str:
    if not found["measurements"]:
        return ""
    names = ("links", "peer", "operation", "size", "latency µs", "99 % µs", "GB/s", "samples")
    rows = [
        [m["links"], m["peer"], m["operation"], size_text(m["size"])]
        + [m[name] for name in ("latency_us", "latency_us_p99", "bandwidth_gb_s", "samples")]
        for m in found["measurements"]
    ]
    measured = f"<details><summary>All measurements</summary>{_table(names, rows)}</details>"
    return _section("Performance", _plots(found, "Soak", invert=True), _expectations(found), measured)


def _plots(found: dict[str, Any], beginning: str, *, invert: bool = False) -> str:
    try:
        from pyfab.testing._plots import plots

        drawn = plots(found)
    except ImportError as error:
        return f'<p class="none">Plots need matplotlib: pip install matplotlib ({escape(str(error))})</p>'
    figures = [
        f"<figure><figcaption>{escape(title)}</figcaption>{svg}</figure>"
        for title, svg in drawn
        if title.startswith(beginning) != invert
    ]
    return f'<div class="plots">{"".join(figures)}</div>'


def _expectations(found: dict[str, Any]) -> str:
    rows = [
        [
            e["over"],
            e["peer"],
            e["operation"],
            _on_one_line(size_text(e["size"])),
            "" if e["latency_us_max"] is None else _on_one_line(f"at most {e['latency_us_max']:g} µs"),
            ""
            if e["bandwidth_gb_s_min"] is None
            else _on_one_line(f"at least {e['bandwidth_gb_s_min']:g} GB/s"),
            _mark("missed: " + "; ".join(e["missed"]), "bad") if e["missed"] else _mark("met", "good"),
        ]
        for e in found["expectations"]
    ]
    return _table(("links", "peer", "expected", "size", "latency", "bandwidth", ""), rows) if rows else ""


def _soaks(found: dict[str, Any]) -> str:
    rows = []
    for soak in found["soaks"]:
        for side, name in (("here", "this side"), ("there", "the peer")):
            did = soak[side]
            operations = ", ".join(f"{number:,} {kind}" for kind, number in sorted(did["operations"].items()))
            wrong = len(did["wrong"]) + did["errors"] + did["unsettled"]
            verdict = _mark(f"{wrong} wrong", "bad") if wrong else _mark("all accounted for", "good")
            rows.append([soak["links"], soak["peer"], name, operations, sum(did["bytes"].values()), verdict])
    if not rows:
        return ""
    return _section(
        "Soak", _plots(found, "Soak"), _table(("links", "peer", "side", "operations", "bytes", ""), rows)
    )


def _drills(found: dict[str, Any]) -> str:
    names = ("links", "peer", "drill", "deadline_s", "noticed_after_s", "healed_after_s", "test")
    rows = [[drill.get(name) for name in names] for drill in found["drills"]]
    titles = ("links", "peer", "drill", "deadline, s", "noticed after, s", "healed after, s", "test")
    return _section("Drills", _table(titles, rows)) if rows else ""


def _tests(found: dict[str, Any]) -> str:
    files: dict[str, list[dict[str, Any]]] = {}
    for test in found["tests"]:
        files.setdefault(test["name"].partition("::")[0], []).append(test)
    return _section("Tests", *(_file(name, tests) for name, tests in files.items()))


def _file(name: str, tests: list[dict[str, Any]]) -> str:
    outcomes = {outcome: sum(t["outcome"] == outcome for t in tests) for outcome in _CLASS}
    summary = " ".join(
        f'<b class="{_CLASS[outcome]}">{number} {outcome}</b>'
        for outcome, number in outcomes.items()
        if number
    )
    rows = [
        [
            test["name"].partition("::")[2],
            _mark(test["outcome"], _CLASS[test["outcome"]]),
            round(test["seconds"], 2),
            test["message"] if test["outcome"] == "skipped" else "",
        ]
        for test in tests
    ]
    seconds = sum(test["seconds"] for test in tests)
    return (
        f'<details><summary><code>{escape(name)}</code> {summary} <span class="soft">{seconds:.1f} s</span></summary>'
        f"{_table(('test', 'outcome', 'seconds', ''), rows)}</details>"
    )


class _Markup(str):
    """Text that is HTML already."""


def _mark(text: str, kind: str) -> _Markup:
    return _Markup(f'<b class="{kind}">{escape(text)}</b>')


def _on_one_line(text: str) -> str:
    return text.replace(" ", "\u00a0")


def _section(title: str, *parts: str) -> str:
    content = "".join(parts)
    return f"<section><h2>{title}</h2>{content}</section>" if content else ""


def _table(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    rows = list(rows)
    if not rows:
        return ""
    numbers = [any(_is_number(row[i]) for row in rows) for i in range(len(names))]
    head = "".join(
        f'<th class="number">{escape(name)}</th>' if number else f"<th>{escape(name)}</th>"
        for name, number in zip(names, numbers, strict=True)
    )
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _cell(value: Any) -> str:
    if isinstance(value, _Markup):
        return f"<td>{value}</td>"
    if _is_number(value):
        return f'<td class="number">{value:,}</td>'
    return f"<td>{escape('' if value is None else str(value))}</td>"
