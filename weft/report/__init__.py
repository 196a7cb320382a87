"""A report: one self-contained HTML page about one run, or several side by side.

`rundata` reads run folders, each section answers one question (`learning`, `timing`, `functions`, `traffic`,
`resources`, `settings`), `lines`, `bars` and `timeline` draw, and `page` puts all of it together. What a run does not
have is left out, or a sentence says so.
"""
