"""The style sheet of the report: one measure, two palettes (light, dark), a phone and paper.

Text has a contrast of 4.5 to 1 or more with its ground in both palettes, lines of charts 3 to 1.
"""

STYLE = """\
:root {
  color-scheme: light dark;
  --ground: #fbfaf8; --surface: #ffffff; --ink: #1b1d22; --muted: #5c626e; --rule: #dcdde2; --accent: #0a5c99;
  --original: #b84a00; --shuffled: #6f7580; --curated: #0a66a8; --sequences: #04345c;
  --good: #17663a; --good-ground: #eaf5ee; --bad: #9b2c13; --bad-ground: #fbeeea;
  --open: #6b4e00; --open-ground: #fbf4e0;
  --mark: #eef4fa;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #14161a; --surface: #1b1e24; --ink: #e8e9ec; --muted: #a3a9b5; --rule: #353a44; --accent: #86bff0;
    --original: #f0914d; --shuffled: #9aa1ad; --curated: #5caeea; --sequences: #cfe6fb;
    --good: #7fd6a0; --good-ground: #16271d; --bad: #f5a08a; --bad-ground: #2e1b16;
    --open: #e8c66a; --open-ground: #2b2513;
    --mark: #1f2a36;
  }
}
* { box-sizing: border-box; }
html { scroll-behavior: smooth; -webkit-text-size-adjust: 100%; }
@media (prefers-reduced-motion: reduce) { html { scroll-behavior: auto; } }
body {
  margin: 0 auto; max-width: 60rem; padding: 2.5rem 1.25rem 4rem; background: var(--ground); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Noto Sans", "Liberation Sans",
    Arial, sans-serif;
  overflow-wrap: break-word;
}
a { color: var(--accent); }
a:focus-visible, .scroll:focus-visible { outline: 2px solid var(--accent); outline-offset: 3px; }
.skip { position: absolute; left: -100vw; } .skip:focus { left: 1rem; top: .5rem; }
h1 { font-size: clamp(1.6rem, 5vw, 2.2rem); line-height: 1.2; margin: .1rem 0 .4rem; letter-spacing: -.015em; }
h2 { font-size: 1.45rem; line-height: 1.25; margin: 0 0 .3rem; letter-spacing: -.01em; }
h3 { font-size: 1rem; line-height: 1.3; margin: 0; }
.kind { margin: 0; font-size: .85rem; color: var(--muted); letter-spacing: .02em; }
.facts, .lead, figcaption, caption, .more { color: var(--muted); }
.facts { margin: 0; } .lead { margin: 0 0 1.25rem; max-width: 46rem; }
section { margin-top: 3.5rem; scroll-margin-top: 1rem; }

.verdict { margin: 2.25rem 0 2rem; }
.verdict p { margin: 0; }
.stamp { display: inline-block; padding: .2rem .7rem; border-radius: 1rem; font-weight: 650; font-size: .95rem; }
.verdict .claim { font-size: clamp(1.45rem, 4.4vw, 2.15rem); line-height: 1.25; font-weight: 650;
  letter-spacing: -.018em; margin-top: .8rem; text-wrap: balance; }
.verdict .because { font-size: clamp(1.05rem, 2.6vw, 1.2rem); line-height: 1.5; margin-top: .8rem; max-width: 48rem; }
.good { color: var(--good); background: var(--good-ground); }
.bad { color: var(--bad); background: var(--bad-ground); }
.open { color: var(--open); background: var(--open-ground); }

.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: 1.25rem 1.5rem;
  margin: 0 0 2.25rem; }
.tiles div { border-top: 2px solid var(--sequences); padding-top: .6rem; }
.tiles dt { font-size: .9rem; font-weight: 600; line-height: 1.3; }
.tiles dd { margin: .2rem 0 0; font-size: .9rem; line-height: 1.35; }
.tiles b { display: block; font-size: 2.1rem; line-height: 1.15; font-weight: 650; letter-spacing: -.025em;
  font-variant-numeric: tabular-nums; }
.tiles .than { display: block; margin-top: .35rem; color: var(--muted); font-variant-numeric: tabular-nums; }

nav ol { list-style: none; margin: 0; padding: .8rem 0; border-block: 1px solid var(--rule); columns: 3 13rem; }
nav li { font-size: .92rem; padding: .1rem 0; }
nav a { text-decoration: none; } nav a:hover { text-decoration: underline; }

.asked { margin: 0; border-top: 1px solid var(--rule); }
.asked div { display: grid; grid-template-columns: 9.5rem 1fr; gap: 1rem; padding: .5rem 0;
  border-bottom: 1px solid var(--rule); }
.asked dt { color: var(--muted); } .asked dd { margin: 0; }

figure { margin: 0 0 1.5rem; }
figcaption { font-size: .9rem; margin-top: .5rem; max-width: 46rem; }
.chart svg { display: block; width: 100%; height: auto; overflow: visible; }
.chart svg * { stroke-linejoin: round; }
.chart text { font-family: inherit; font-variant-numeric: tabular-nums; }
.chart .narrow { display: none; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .2rem 1.25rem; margin: 0 0 .5rem; padding: 0;
  font-size: .92rem; }
.legend svg { width: 26px; height: 8px; margin-right: .45rem; vertical-align: middle; }
.legend path { stroke-width: 3; fill: none; }

.bar { display: grid; grid-template-columns: 1fr 1.6rem; gap: .25rem .6rem; margin-bottom: .9rem; }
.bar h3 { grid-column: 1 / -1; font-weight: 600; }
.bar img { width: 100%; height: 6.5rem; display: block; border-radius: 2px; }
.axis { display: flex; justify-content: space-between; margin-right: 2.2rem; font-size: .85rem; color: var(--muted);
  font-variant-numeric: tabular-nums; }

.scroll { overflow-x: auto; margin: 0 0 1.75rem; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-size: .9rem; padding-bottom: .45rem; }
caption span { display: block; position: sticky; left: 0; max-width: min(46rem, calc(100vw - 2rem)); }
th, td { padding: .38rem .7rem; text-align: left; vertical-align: middle; border-bottom: 1px solid var(--rule); }
th:first-child { padding-left: 0; } td:last-child, th:last-child { padding-right: 0; }
thead th { font-weight: 600; font-size: .85rem; color: var(--muted); vertical-align: bottom; line-height: 1.3; }
tbody th { font-weight: 500; min-width: 5rem; }
.n { text-align: right; white-space: nowrap; } thead .n { white-space: normal; }
.marked > * { background: var(--mark); font-weight: 650; }
.marked > :first-child { padding-left: .5rem; }
td:has(> .strip) { width: 28%; }
.strip { display: block; width: 100%; min-width: 8rem; height: 1.1rem; border-radius: 2px; background: var(--surface);
  border: 1px solid var(--rule); }
.named { display: flex; gap: .5em; align-items: baseline; }
.swatch { flex: none; width: .85em; height: .85em; border-radius: 2px; transform: translateY(.05em); }

.window { border: 1px solid var(--rule); background: var(--surface); border-radius: .4rem; padding: 1rem 1.2rem;
  margin-bottom: 1rem; }
.window p { margin: .3rem 0 .6rem; } .window ol { margin: 0; padding-left: 1.3rem; }
.window .facts { margin: .5rem 0 .15rem; font-size: .88rem; }
blockquote { margin: 0; padding-left: .8rem; border-left: 2px solid var(--rule); font-size: .92rem;
  unicode-bidi: isolate; overflow-wrap: anywhere; }
.more { font-size: .88rem; }
.notes { padding-left: 1.2rem; } .notes li { margin-bottom: .4rem; }
code { font: .88em ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; }
.plate img { display: block; width: 100%; height: auto; background: #fff; border-radius: .4rem; }
.plane { position: relative; }
.plane img { display: block; width: 100%; height: auto; }
.plane span { position: absolute; transform: translate(-50%, -50%); font-size: .8rem; font-weight: 650;
  line-height: 1.1; white-space: nowrap;
  text-shadow: 0 0 2px var(--ground), 0 0 3px var(--ground), 0 0 4px var(--ground), 0 0 6px var(--ground); }
footer { margin-top: 4rem; padding-top: 1rem; border-top: 1px solid var(--rule); color: var(--muted);
  font-size: .88rem; }
footer p { margin: 0 0 .3rem; overflow-wrap: anywhere; }

@media (max-width: 40rem) {
  body { padding: 1.5rem 1rem 3rem; }
  section { margin-top: 2.75rem; }
  .chart .wide { display: none; } .chart .narrow { display: block; }
  .asked div { grid-template-columns: 1fr; gap: 0; }
  .bar img { height: 5rem; }
  .plane span { font-size: .72rem; max-width: 9rem; overflow: hidden; text-overflow: ellipsis; }
  th, td { padding-inline: .3rem; }
  tbody th { min-width: 6rem; }
  .strip { min-width: 4.4rem; }
  .desk { display: none; }
}
@media print {
  :root {
    color-scheme: light;
    --ground: #fff; --surface: #fff; --ink: #000; --muted: #444; --rule: #ccc; --accent: #000;
    --original: #b84a00; --shuffled: #6f7580; --curated: #0a66a8; --sequences: #04345c;
    --good: #17663a; --good-ground: #fff; --bad: #9b2c13; --bad-ground: #fff;
    --open: #6b4e00; --open-ground: #fff; --mark: #f2f2f2;
  }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  body { max-width: none; padding: 0; font-size: 10pt; }
  nav, .skip { display: none; }
  section { margin-top: 1.5rem; }
  .chart .wide { display: block; } .chart .narrow { display: none; }
  h2, h3, caption, .lead, .legend { break-after: avoid; break-inside: avoid; }
  figure, .window, .verdict, .tiles div, tr, li { break-inside: avoid; }
  thead { display: table-header-group; }
  .scroll { overflow: visible; }
  table { font-size: 8.5pt; } th, td { padding: .2rem .35rem; } tbody th { min-width: 0; }
  .strip { min-width: 0; }
  .desk { display: revert; }
  a { color: inherit; text-decoration: none; }
}
@page { margin: 16mm 14mm; }
"""
