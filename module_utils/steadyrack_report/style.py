# SPDX-License-Identifier: BSD-2-Clause
"""The look of the page: light and dark, phone and desk. Colours after Okabe and Ito, told apart by everybody."""

STYLE = """
:root{--bg:#fff;--ink:#1a1a1a;--soft:#666;--grid:#ddd;--card:#f6f6f4;--gap:#bbb;--bad:#b3261e;--c0:#0072b2;
  --c1:#d55e00;--c2:#009e73;--c3:#cc79a7;--c4:#b58900;--c5:#56b4e9;--band:#0072b2;--alarm:#b3261e;
  --warn:#a66f00}
@media(prefers-color-scheme:dark){:root{--bg:#121212;--ink:#eee;--soft:#aaa;--grid:#333;--card:#1d1d1d;
  --gap:#666;--bad:#ff8a80;--c0:#4aa8e8;--c1:#ff8c42;--c2:#3ecf9f;--c3:#e6a0c4;--c4:#e0b040;--c5:#8fd3ff;
  --band:#4aa8e8;--alarm:#ff8a80;--warn:#e0b040}}
*{box-sizing:border-box}
body{margin:0 auto;padding:12px;max-width:1500px;background:var(--bg);color:var(--ink);
  font:16px/1.45 system-ui,sans-serif;overflow-wrap:anywhere}
h1{font-size:1.3em;margin:.2em 0}
h2{font-size:1.1em;margin:1.4em 0 .4em}
.soft{color:var(--soft);font-size:.88em}
ul.head{padding-left:1.1em;margin:.5em 0;font-weight:600}
.grid{display:grid;gap:10px;grid-template-columns:repeat(auto-fill,minmax(min(100%,420px),1fr))}
.card{background:var(--card);border-radius:8px;padding:8px;min-width:0;border-left:4px solid var(--grid)}
.card.one{max-width:820px}
.card.bad{border-left-color:var(--bad)}
.card h3{font-size:1em;margin:0 0 .2em}
.tag{font-weight:600}
.tag.bad,td.bad{color:var(--bad);font-weight:600}
svg{display:block;width:100%;height:auto}
svg text{fill:var(--soft);font:13px system-ui,sans-serif}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-size:.88em;font-variant-numeric:tabular-nums}
th,td{padding:3px 9px;text-align:right;border-bottom:1px solid var(--grid);white-space:nowrap}
th:first-child,td:first-child,th.l,td.l{text-align:left}
td.note{white-space:normal;text-align:left}
td.note:not(:empty){min-width:16em}
.key{display:flex;flex-wrap:wrap;gap:2px 14px;margin:.3em 0;font-size:.85em;list-style:none;padding:0}
.key svg{display:inline-block;width:30px;vertical-align:middle}
"""
