"""Formulas in docstrings, which are plain text for a terminal, set for the site.

Letters are slanted, powers and indices stand where they belong, Greek letters are Greek. `typeset` knows the notation
of this program (see `dalembert.mechanics`); outside formulas nothing changes.
"""

from __future__ import annotations

import re

CODE = re.compile(r"(`+[^`]+`+|\$[^$\n]+\$)")
GREEK = {
    "alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "eps": "ε", "zeta": "ζ", "eta": "η", "theta": "θ",
    "iota": "ι", "lambda": "λ", "mu": "μ", "nu": "ν", "xi": "ξ", "pi": "π", "rho": "ρ", "sigma": "σ", "tau": "τ",
    "phi": "φ", "chi": "χ", "psi": "ψ", "omega": "ω", "Phi": "Φ",
}  # fmt: skip
LETTERS = "|".join(GREEK)
SCRIPT = r"(?:\{[^{}]*\}|\([^()]*\)|-?\d*[a-zA-Z]+\d*|-?1/2|-?\d+|[-+*])"
ATOM = re.compile(
    rf"""(?P<unit>\bkg\ m\^2 | \bN\ m\b | \b(?:m|rad)/s\b | (?<=\ \()(?:m|N|s|1/s)(?=\)) | \bkg,\ m\b
         | \bJ\.(?=\ Nonl) | \bR\.\ Soc\.\ A | "[A-Z]\*?" | \b[IVX]+\.\d)
    | (?P<sign><= | <- | >= | != | -> | \bsqrt(?=\() | \boo\b | (?<=[\w}}.])\ o\ (?=[A-Zrt.])
         | (?<=[\w)'|\]*}}>~])\ -\s(?=[\w(|<\[]) | (?<=\(\d)-(?=[a-z]\b)
         | (?<=[\s(=])-(?=\d|[a-zA-Z](?:\b|[\d_^])|tr\(|sin|cos|inf|(?:{LETTERS})(?:\b|_))
         | (?:(?<=\b[A-Za-z])|(?<=\b[A-Za-z]\d)|(?<=xi)|(?<=\)))\ x\ (?=[A-Z(]|[a-z]\d?\b|hat|eta)
         | (?<=\d)\ x\ (?=\d))
    | (?P<open><)(?=[^<>\s=])
    | (?P<close>(?<![-\s])>)
    | (?P<base>[\])](?=[\^_']) | \|(?=\^)
         | (?<![\w'.])(?!theta\ func|[dD]'[A-Z])(?:(?:int|sum|dcay|skew)(?=_)
         |\d+(?=\^)|[A-Za-z]+(?=\^)|d?(?:{LETTERS})|Ad|ad|[A-Za-z])(?![A-Za-z]))
      (?P<digits>\d*)(?P<marks>(?:~|\^(?=[_\s])|\*{{1,2}})?'*(?!s\b))
      (?P<scripts>(?:\^{SCRIPT}|_{SCRIPT})*(?:(?<=[\w}}])'*(?!s\b))?)""",
    re.VERBOSE,
)
SIGNS = {"<=": "≤", "<-": "←", ">=": "≥", "!=": "≠", "->": "→", "sqrt": "√", "oo": "∞", "o": "∘", "-": "−", "x": "×"}
BASES = {"int": "∫", "sum": "Σ", "RP": "ℝP", "Ad": "Ad", "ad": "ad"}
PROGRAM = re.compile(r"\bdef |\bimport |\b(?:da|np|kernels)\.|[a-z]\(.*[\"=]|>>>|^    \[|::|\bfor .* in ", re.MULTILINE)
ARTICLE = re.compile(rf"\s+(?!(?:{LETTERS}|is|of|acts|has|and|in|at|with|on)\b)[a-z]{{2,}}|\s[A-Z][a-z]|-|$")
"""What follows "a" or "A" where it is a word of English."""


def _escape(text: str) -> str:
    return text.replace("<", "&lt;").replace("*", r"\*")


def _atom(found: re.Match[str], after: str) -> str:
    """One symbol with its primes, powers and indices, in HTML."""
    whole, base = found[0], found["base"]
    if found["unit"]:
        return _escape(whole).replace("^2", "²")
    if found["sign"]:
        sign = SIGNS[whole.strip()]
        return f" {sign} " if whole.startswith(" ") else sign
    if found["open"]:
        return "⟨"
    if found["close"]:
        return "⟩"
    marked = found["digits"] or found["marks"] or found["scripts"]
    if base in "aA" and not marked and ARTICLE.match(after):
        return whole
    scripts = re.findall(rf"([\^_])({SCRIPT})", found["scripts"])
    if base in "RC" and scripts and re.fullmatch(r"\d|[nkmr]|\{2n.*", scripts[0][1]) and scripts[0][0] == "^":
        base = {"R": "ℝ", "C": "ℂ"}[base]
    elif base in BASES:
        base = BASES[base]
    elif base.lstrip("d") in GREEK:
        base = base.replace(base.lstrip("d"), GREEK[base.lstrip("d")]) if base not in GREEK else GREEK[base]
        base = f"<var>{base}</var>"
    elif len(base) == 1 and base.isalpha():
        base = f"<var>{base}</var>"
    marks = found["marks"]
    text = base + "\u0303" * ("~" in marks) + "\u0302" * ("^" in marks)
    if found["digits"]:
        text += f"<sub>{found['digits']}</sub>"
    if "*" in marks:
        text += f"<sup>{_escape('*' * marks.count('*'))}</sup>"
    text += "′" * marks.count("'")
    for kind, script in scripts:
        tag = "sup" if kind == "^" else "sub"
        plain = script.isalnum() and script not in GREEK and not script.isdigit()
        inner = f"<var>{script}</var>" if plain and len(script) < 3 else typeset(script.strip("{}()"))
        text += f"<{tag}>{inner.replace('-', '−')}</{tag}>"
    return text + "′" * found["scripts"].count("'")


def typeset(text: str) -> str:
    """Prose with formulas in plain text, as Markdown in which they are set: h^2 has a power, xi is Greek."""
    pieces, end = [], 0
    for found in ATOM.finditer(text):
        pieces += [_escape(text[end : found.start()]), _atom(found, text[found.end() :])]
        end = found.end()
    return "".join([*pieces, _escape(text[end:])])


def paragraph(text: str) -> str:
    """A paragraph with its formulas set; one that is indented is a formula of its own, or a program."""
    if text.startswith("    ") and PROGRAM.search(text):
        return text
    lead = "&emsp;" if text.startswith("    ") else ""
    pieces = CODE.split(text.replace("\n    ", "  \n&emsp;").strip() if lead else text)
    pieces[::2] = [typeset(piece) for piece in pieces[::2]]
    return lead + "".join(pieces)
