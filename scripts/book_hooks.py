"""What MkDocs needs changed in pages that GitHub shows too."""

import re


def on_page_markdown(markdown, page, **_):
    # The search shows decision notes last, and troubleshooting first.
    boosts = {"decisions/": 0.2, "operate/troubleshooting": 3}
    page.meta["search"] = {"boost": next((boost for start, boost in boosts.items() if page.url.startswith(start)), 1)}
    # rustdoc's attributes of a code block are no language.
    markdown = re.sub(r"^```rust,\S+$", "```rust", markdown, flags=re.M)
    # Within a table GitHub wants a pipe in code escaped, and Python-Markdown wants it as it is.
    return re.sub(r"`[^`\n]*`", lambda code: code[0].replace(r"\|", "|"), markdown)
