"""One run as one HTML page that needs nothing else: no network, no scripts, plots and styles inside."""

from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from xml.etree.ElementTree import Element, SubElement, tostring

from lab.results import theme
from lab.results.drawing import Plot
from lab.results.findings import lags, ranked, summary
from lab.results.model import Run, compares, title
from lab.results.part_tables import part_tables
from lab.results.plots import plots
from lab.results.tables import Cell, Row, Table, overall, per_class, per_length, predictions

ONE_SEED = "One seed only: the figures have no spread, and differences between policies may be chance."
HOW_TO_READ = "Medians over the seeds, the range over the seeds below. Bold: the best as written. Times are virtual engine seconds."


def write_page(run: Run, path: Path) -> None:
    """Writes the page, creating the folder if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(run), encoding="utf-8")


def page(run: Run) -> str:
    """The page as text. The same run gives the same text."""
    parts = [*_opening(run), *_tables(run), *_how(run)]
    html = [tostring(part, encoding="unicode", method="html") for part in parts]
    drawings = "\n".join(_figure(plot) for plot in plots(run))
    html.insert(len(_opening(run)), f'<h2>Plots</h2>\n<div class="plots">\n{drawings}\n</div>')
    template = Template((files("lab.results") / "page.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=_escaped(f"TokenFleet lab: {run.scenario}"),
        light=theme.variables(theme.LIGHT),
        dark=theme.variables(theme.DARK),
        fonts=theme.FONTS,
        text=theme.TEXT_CSS,
        body="\n".join(html),
    )


def _opening(run: Run) -> list[Element]:
    parts = [_element("h1", run.scenario[:1].upper() + run.scenario[1:])]
    how = run.run
    facts = [f"{how.trace} at {how.speed:g}x", f"{len(run.policies)} policies", f"{how.seeds} seeds"]
    if how.requests:
        facts.insert(1, f"{how.requests:,} requests")
    parts.append(_element("p", " · ".join(facts), "of"))
    if how.description:
        parts.append(_element("p", how.description))
    parts.append(_element("p", summary(run), "summary"))
    if how.seeds < 2:
        parts.append(_element("p", ONE_SEED, "note"))
    behind = lags(run)
    if behind:
        parts.append(_element("p", "Where a baseline beats TokenFleet:"))
        listed = Element("ul")
        for lag in behind:
            listed.append(_element("li", str(lag)))
        parts.append(listed)
    elif compares(run):
        parts.append(_element("p", "No baseline beats TokenFleet in any figure of the tables below."))
    return parts


def _tables(run: Run) -> list[Element]:
    parts = [_element("h2", "Figures"), _element("p", HOW_TO_READ, "note")]
    tables = [overall(run), *per_class(run)]
    if run.input_lengths:
        tables.append(per_length(run))
    tables += [*part_tables(run), *predictions(run)]
    for table in tables:
        parts += [_element("h3", table.heading), _table(table)]
    return parts


def _how(run: Run) -> list[Element]:
    how = run.run
    parts = [_element("h2", "How it was run"), Element("pre")]
    parts[-1].append(_element("code", how.command))
    facts = {"trace": how.trace, "speed": f"{how.speed:g}x", "seeds": str(how.seeds)}
    facts |= {f"assumed ({i})": text for i, text in enumerate(how.assumptions, start=1)}
    facts["bound"] = run.bound.relaxation or "the run does not say what was relaxed"
    listed = Element("dl")
    facts |= {title(name): citation for name in ranked(run) if (citation := run.policies[name].citation)}
    for term, text in facts.items():
        listed.append(_element("dt", term))
        listed.append(_element("dd", text))
    parts.append(listed)
    return parts


def _table(table: Table) -> Element:
    scroll = Element("div", {"class": "scroll"})
    root = SubElement(scroll, "table")
    head = SubElement(SubElement(root, "thead"), "tr")
    for label in ("policy", *table.columns):
        head.append(_element("th", label.replace(", ", ",\N{NO-BREAK SPACE}"), scope="col"))
    body = SubElement(root, "tbody")
    for row in table.rows:
        body.append(_row(row))
    return scroll


def _row(row: Row) -> Element:
    element = Element("tr", {"class": "ours"} if row.ours else {"class": "bound"} if row.bound else {})
    element.append(_element("th", row.name, scope="row"))
    for cell in row.cells:
        element.append(_cell(cell))
    return element


def _cell(cell: Cell) -> Element:
    element = _element("td", cell.text, "best" if cell.best else "")
    for small in (cell.range, cell.detail):
        if small:
            element.append(_element("small", small))
    return element


def _figure(plot: Plot) -> str:
    kind = ' class="wide"' if plot.wide else ""
    return f"<figure{kind}><figcaption>{_escaped(plot.heading)}</figcaption>\n{plot.svg(standalone=False)}</figure>"


def _element(tag: str, text: str, kind: str = "", **attributes: str) -> Element:
    element = Element(tag, {"class": kind, **attributes} if kind else attributes)
    element.text = text.replace(" %", "\N{NO-BREAK SPACE}%")
    return element


def _escaped(text: str) -> str:
    return escape(text)
