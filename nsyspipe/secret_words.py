"""How secrets look in command lines: what their names hold, and how their values are written.

No pattern here looks at a text twice: words come from anywhere and may be long.
"""

from __future__ import annotations

import re

__all__ = [
    "ASSIGNED",
    "FLAG",
    "GLUED",
    "HEADER",
    "IS_COUNT",
    "IS_LIST",
    "IS_NUMBER",
    "IS_SECRET",
    "IS_SECRET_OPTION",
    "IS_USER",
    "IS_USER_OPTION",
    "KNOWN_TOKEN",
    "LIST_OPTION",
    "OPTION",
    "QUOTED_HEADER",
    "SCHEME",
    "USER",
    "USER_IN_URL",
]

_ANY_CASE = re.IGNORECASE | re.DOTALL
# Of short words only whole ones: neither sigma nor passes. A tokenizer is no secret.
_NAMED_SO = (
    r"(?:key|token(?!i[sz])|secret|passw|passphrase|passcode|pwd|credential|auth|cookie|signature"
    r"|pass(?![a-z])|(?<![a-z])sig(?![a-z]))"
)
# A whole name, looked at once, so that no text makes the search slow.
_NAME = rf"(?=[\w.\-]*?{_NAMED_SO})[\w.\-]++"
_BEFORE = r"(?<![\w.\-])"
_PLURAL = (
    r"(?=[\w.\-]*?(?:key|token|secret|password|credential|cookie|signature)s(?![\w.\-]))[\w.\-]++"
)

# How many tokens there are, or how large keys are, is worth knowing: --max-tokens 512, key_dim=64.
_COUNT = (
    r"(?:(?:max|min|num|n|total|new|per|vocab)(?:[_.\-]\w{1,20}?)?[_.\-]?(?:token|key)s?(?![a-z])"
    r"|(?:token|key)s?[_.\-](?:dims?|size|len|length|dropout|per|count|rate|budget|limit|heads))"
)
_COUNT_NAME = rf"(?=[\w.\-]{{0,40}}?(?<![a-z]){_COUNT})[\w.\-]++"
_NUMBER = r"[+\-]?\d[\d_]{0,11}(?:\.\d{0,9})?(?:e[+\-]?\d{1,3})?[kmgb]?"
_NO_COUNT = rf"(?!{_COUNT_NAME}[\"']?(?:\s{{0,3}}[=:]\s{{0,3}}|\s{{1,9}}){_NUMBER}(?![\w.]|,\w))"

_QUOTE = r"(?:\\{0,7}[\"'])"
_QUOTED = r"(?:\"(?:[^\"\\]|\\.)*+\"?|'[^']*+'?|\\{1,7}\"[^\"]*+\"?|\\{1,7}'[^']*+'?)"
# A comma goes on unless it ends a part: A=1,TOKEN=abc,B=2
_COMMA = r",(?=[^\s,;&\"'])(?![\w.\-]++=)"
_SCHEMES = r"(?:Bearer|Basic|Token|Digest|Negotiate|ApiKey)"


def _rest(ends: str) -> str:
    """Return what belongs to a value's begin: up to a space, or what else ends it, as a quote around it all."""
    string = rf"(?=[\"'][^\s,;&\"'}})\]\\]){_QUOTED}"
    return rf"(?:[^\s,;&\"'\\{ends}]|\\(?![\"'])|{_COMMA}|{string})*+"


_LIST = r"\[[^\]]*+\]?|\{[^}]*+\}?"
_REST, _REST_OF_STRING = _rest(""), _rest(r"})\]")
_VALUE = (
    rf"(?:{_QUOTED}{_REST_OF_STRING}"
    rf"|(?:{_SCHEMES}\s{{1,9}})?(?:{_LIST}|[^\s,;&\"'\\]|\\(?![\"'])){_REST})"
)

IS_SECRET = re.compile(_NAMED_SO, _ANY_CASE)
IS_SECRET_OPTION = re.compile(rf"--?{_NAME}(?:=|\Z)", _ANY_CASE)
IS_LIST = re.compile(rf"--?{_PLURAL}", _ANY_CASE)
IS_COUNT = re.compile(rf"-*{_COUNT_NAME}\Z", _ANY_CASE)
IS_NUMBER = re.compile(rf"{_NUMBER}\Z", _ANY_CASE)
SCHEME = re.compile(rf"{_SCHEMES}\Z", _ANY_CASE)
# An option that takes no value, whatever it is about.
FLAG = re.compile(
    r"--?(?:use|no|enable|disable|with|without|is|has|skip|allow|require)[_\-]", _ANY_CASE
)

# KEY=VALUE, key = "value", "key": "value", d["key"]="value", Header: value; not host:29500.
ASSIGNED = re.compile(
    rf"({_BEFORE}{_NO_COUNT}{_NAME}(?:{_QUOTE}?\]?(?:=|\s{{1,3}}=(?!=)\s{{1,3}})"
    rf"|{_QUOTE}\s{{0,9}}:\s{{0,9}}|\s{{0,9}}:(?!\d+\b|//)\s{{0,9}}))({_VALUE})",
    _ANY_CASE,
)
_BETWEEN = rf"{_QUOTE}?[\s,]\s{{0,9}}"
# No option's value is an option whose name is a secret's: its own value would be left.
_NO_OPTION = rf"(?!{_QUOTE}?--?{_NAME}(?:[\s=\"']|\Z))"
_NO_FLAG = rf"(?!{FLAG.pattern}[\w.\-]*+{_BETWEEN}-)"
_OPTION_BEGIN = r"(?<![\w.\-])(?=-)"
OPTION = re.compile(
    rf"({_OPTION_BEGIN}{_NO_FLAG}--?{_NO_COUNT}{_NAME}{_BETWEEN}){_NO_OPTION}({_VALUE})", _ANY_CASE
)
LIST_OPTION = re.compile(
    rf"({_OPTION_BEGIN}{_NO_FLAG}--?{_NO_COUNT}{_PLURAL}{_BETWEEN}){_NO_OPTION}"
    rf"({_VALUE}(?:\s{{1,9}}(?!-){_VALUE})*+)",
    _ANY_CASE,
)
# A whole word, or what stands in quotes: all that follows the name.
HEADER = re.compile(rf"({_NAME}:\s{{1,9}})(?=\S).*+", _ANY_CASE)
QUOTED_HEADER = re.compile(
    rf"([\"']{_NAME}:\s{{1,9}})(?=[^\s\"'])(?:[^\"'\\]|\\(?![\"']))*+", _ANY_CASE
)
# The password of mysql -pPASSWORD; not a number, nor these names.
GLUED = re.compile(
    r"((?<![^\s\"'])-p)(?!(?:ass(?:wd|word|phrase|code)?|wd|ath|ort|pn|refix|artition|recision|rofile|roject"
    r"|lugin|rocs|2p|rint|y|eriod|arallel|\d{1,5})(?![^\s\"'=,;]))([^\s\"']++|(?=[\"'])"
    + _QUOTED
    + ")"
)
# curl's and wget's name:password; two numbers are a user's and a group's.
_USER = r"(?!\d+:\d+(?![^\s\"']))[^\s:\"'/]++:(?=[^\s\"'])"
IS_USER_OPTION = re.compile(r"(?:-[uU]|--(?:proxy-)?user)\Z")
IS_USER = re.compile(_USER)
USER = re.compile(
    rf"((?<![^\s\"'])(?:-[uU]\s{{0,9}}|--(?:proxy-)?user[=\s]\s{{0,9}}))((?={_QUOTE}{_USER}){_QUOTED}|(?={_USER})[^\s\"']++)"
)
# Matched against a word that ends with its last @. A password may hold a slash.
USER_IN_URL = re.compile(
    r"(\b[a-z][a-z0-9+.\-]{0,30}://)(?:[^/\s:]*+:\S*@|[^/\s]*@)", re.IGNORECASE
)
# Tokens of well-known services, wherever they stand.
KNOWN_TOKEN = re.compile(
    r"\b(?:hf_|sk-|gh[oprsu]_|github_pat_|glpat-|xox[abp]-|AKIA|ASIA|AIza|eyJ)[\w.\-]{16,}"
)
