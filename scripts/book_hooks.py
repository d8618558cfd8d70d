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
