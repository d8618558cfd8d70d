"""Adapts pages that GitHub renders too to MkDocs."""

import re


def on_page_markdown(markdown, page, **_):
    # Search results: troubleshooting first, decision notes last.
    boosts = {"decisions/": 0.2, "operate/troubleshooting": 3}
    page.meta["search"] = {"boost": next((boost for start, boost in boosts.items() if page.url.startswith(start)), 1)}
    # Drop rustdoc's attributes from the language of a code block.
    markdown = re.sub(r"^```rust,\S+$", "```rust", markdown, flags=re.M)
    # In tables, GitHub needs pipes in code to be escaped, and Python-Markdown needs them plain.
    return re.sub(r"`[^`\n]*`", lambda code: code[0].replace(r"\|", "|"), markdown)


def on_page_content(html, **_):
    """Gives each cell the head of its column, for small screens."""
    return re.sub(r"<table>.*?</table>", lambda table: headed(table[0]), html, flags=re.S)


def headed(table):
    heads = [re.sub(r"<[^>]*>", "", head).strip().replace('"', "&quot;") for head in re.findall(r"<th\b[^>]*>(.*?)</th>", table, flags=re.S)]

    def row(cells):
        at = iter(heads)
        return re.sub(r"<td\b", lambda cell: f'{cell[0]} data-head="{head}"' if (head := next(at, "")) else cell[0], cells[0])

    return re.sub(r"<tr>.*?</tr>", row, table, flags=re.S)
