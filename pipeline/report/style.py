"""The style of a report, for light and dark screens and for paper. In code, since a zip for spark-submit cannot open
files.
"""

from __future__ import annotations

from typing import Final

INK: Final = "currentColor"
FAINT: Final = "var(--faint)"
PAPER: Final = "var(--paper)"
SERIES: Final = tuple(f"var(--c{number})" for number in range(1, 9))
"""The colours of Okabe and Ito, which are distinct for all kinds of colour vision; the first two differ in lightness.
"""
MARKED: Final = "var(--marked)"

STYLE: Final = """\
:root {
  --ink: #1c2126; --paper: #ffffff; --faint: #d5dae0; --soft: #5a6570; --band: #f4f6f8; --link: #0b5cad;
  --c1: #0072b2; --c2: #e69f00; --c3: #009e73; --c4: #cc79a7; --c5: #56b4e9; --c6: #d55e00; --c7: #8c6d1f;
  --c8: #8a8f94; --marked: #d55e00;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --ink: #e4e8ec; --paper: #14181c; --faint: #39424b; --soft: #a3adb7; --band: #1d2329; --link: #7cb8f2;
    --c1: #4aa3df; --c2: #f0b429; --c3: #2cc295; --c4: #de93bd; --c5: #8fd0f5; --c6: #f07b3a; --c7: #c2a24e;
    --c8: #9aa1a8; --marked: #f07b3a;
  }
}
* { box-sizing: border-box; }
html { background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, "Segoe UI", Arial, sans-serif; }
body { max-width: 72rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .25rem; overflow-wrap: anywhere; }
header p { color: var(--soft); margin: 0 0 1rem; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 .5rem; padding-top: .75rem; border-top: 1px solid var(--faint); }
nav ul { list-style: none; display: flex; flex-wrap: wrap; gap: .25rem 1.1rem; padding: 0; margin: 0; }
a { color: var(--link); }
p { max-width: 52rem; margin: .4rem 0; }
figure { margin: 1.25rem 0; break-inside: avoid; }
figcaption, caption, summary { color: var(--soft); font-size: .9rem; text-align: left; padding: .2rem 0; }
caption { white-space: nowrap; }
.wide { overflow-x: auto; }
svg { display: block; max-width: 100%; height: auto; }
details { margin: .75rem 0; }
summary { cursor: pointer; }
table { border-collapse: collapse; font-size: .875rem; margin: .5rem 0; }
th, td { padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--faint); text-align: left; vertical-align: top; }
th:last-child, td:last-child { padding-right: 0; }
thead th { color: var(--soft); font-weight: 600; vertical-align: bottom; overflow-wrap: normal; }
tbody th { font-weight: 400; }
tbody tr:hover { background: var(--band); }
tbody th, td { max-width: 26rem; min-width: 4.5rem; overflow-wrap: anywhere; }
tbody th { min-width: 8rem; }
td.n { min-width: 0; }
.k { white-space: nowrap; }
td.r { min-width: 11rem; }
td.n, th.n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
thead th.n { white-space: normal; }
@media screen and (max-width: 48rem) {
  svg { max-width: none; min-width: 44rem; }
  caption { white-space: normal; }
  table.pairs td.n { white-space: normal; }
  tbody th { min-width: 6rem; }
}
@media print {
  html { font-size: 11px; }
  body { max-width: none; padding: 0; }
  nav { display: none; }
  .wide { overflow: visible; }
  section { break-inside: auto; }
  h2 { break-after: avoid; }
  thead { display: table-header-group; }
  tr { break-inside: avoid; }
}
"""
