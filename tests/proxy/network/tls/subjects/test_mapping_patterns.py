"""Patterns beside `java.util.regex`: the same matches, groups and replacements; and a bound on the time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.proxy.network.tls.subjects.mapping_patterns import MAX_STEPS, StepBudget, StepsExceededError
from headrace.proxy.network.tls.subjects.pattern_syntax import MAX_NESTING, MAX_STATES, compile_pattern
from headrace.quota_callbacks.identities import MAX_PRINCIPAL_CHARACTERS
from testbed.kafka.jvm import start_jvm

if TYPE_CHECKING:
    from headrace.proxy.network.tls.subjects.mapping_patterns import Spans


def java_regex() -> Any:
    return start_jvm().JClass("java.util.regex.Pattern")


def java_units(text: str, index: int) -> int:
    """The index of a character in Java's UTF-16."""
    return len(text[:index].encode("utf-16-be", "surrogatepass")) // 2


def check(pattern: str, text: str) -> bool:
    """Compare whether a pattern matches the whole text, and every match within it with all groups."""
    ours, java = compile_pattern(pattern), java_regex().compile(pattern)
    whole = bool(java.matcher(text).matches())
    assert ours.matches(text, StepBudget()) == whole, (pattern, text)
    found: list[Spans] = []
    ours.replace_all(text, lambda spans: found.append(spans) or "", StepBudget())
    matcher = java.matcher(text)
    assert matcher.groupCount() == ours.groups
    expected = []
    while matcher.find():
        expected.append([index for n in range(ours.groups + 1) for index in (matcher.start(n), matcher.end(n))])
    assert [[-1 if at is None else java_units(text, at) for at in spans] for spans in found] == expected, (
        pattern,
        text,
    )
    return whole


TABLE: dict[str, tuple[str, ...]] = {
    "": ("", "a"),
    "a": ("a", "A", "ba"),
    "abc|abd|": ("abd", "", "ab"),
    "a|ab": ("ab",),
    "(a|ab)(c|bcd)(d*)": ("abcd",),
    "(a*)(a?)(a+)": ("aaa", "a"),
    "(a*?)(a??)(a+?)": ("aaa", "aa"),
    "(ab?)*": ("abaab", "abb"),
    "((?:a)|b)*": ("ab", "ba"),
    "(?:(a)|(b))?c": ("ac", "bc", "c"),
    "(a(b)?)?c": ("abc", "ac", "c"),
    "(a)?b": ("b", "ab"),
    "a{0}b": ("b", "ab"),
    "a{2}": ("a", "aa", "aaa"),
    "(a{2,3}){2}": ("aaaa", "aaaaa", "aaaaaa", "aaa"),
    "a{1,}?b": ("aaab", "b"),
    "(a|b){2,3}?": ("abab", "aba"),
    "[a-c]+": ("abc", "abcd", "-"),
    "[^a-c]+": ("xyz", "a", "\n", "🦊"),
    "[-a]": ("-", "a"),
    "[a-]": ("-", "a", "b"),
    r"[\w-z]+": ("a-z", "_", "."),
    r"[\]\\\-^]+": ("]\\-^", "a"),
    "[a^]": ("^", "a"),
    "[a&]": ("&", "a"),
    r"[\d\s]+": ("1 2\t", "a", "٣", "\x0b", "\x85", "\xa0"),
    r"[\D]": ("a", "1", "٣"),
    r"\d\D\w\W\s\S": ("1ab- c", "1ab-\x0bc", "1aé- c"),
    r"\t\n\r\f\a\e": ("\t\n\r\f\a\x1b",),
    r"\x41\u00e9\.\,\/\-\é\ ": ("Aé.,/-é ",),
    r"[\x41-\x43]+": ("ABC", "D"),
    ".": ("a", "\n", "\r", "\x85", "\u2028", "\u2029", "\x0b", "\x1c", "🦊"),
    ".*": ("", "ab", "a\nb", "日本"),
    "^a$": ("a", "a\n", "a\r\n", "a\r", "a\u2028", "a\n\n", "a\x85", "a\x0b"),
    "a$": ("a", "a\n", "a\r\n", "a\r", "\na", "ba\u2029"),
    r"$": ("", "\n", "\r\n", "\n\r", "\r", "a\r\n"),
    r"a$.*\n?": ("a\n", "a"),
    r"\Aa\z": ("a", "a\n", "ba"),
    r"x*": ("", "axxb", "x"),
    "^": ("", "ab"),
    "(?i)cn=(A|é)": ("CN=a", "cn=É", "Cn=é"),
    "(?i)[a-cX]+": ("AbCx", "d"),
    "(?i)[^a]": ("A", "b"),
    "a(?i)b|c": ("aB", "C", "Ab"),
    "(a(?i)b)c": ("aBc", "aBC"),
    "(?i:a)b": ("Ab", "AB"),
    "(?i)k": ("\N{KELVIN SIGN}", "K"),
    r"(?i)\w\x41": ("_a", "éa"),
    "(?<user>a+)(?<n2>b)?": ("aa", "aab"),
    "]}": ("]}",),
    "(?:a|b|cd)*?e": ("abcde", "ace"),
    "^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$": ("OU=x,cn=kafka.1,O=y", "O=y"),
    r"^CN=((?:\\.|[^,\\])*),.*$": (r"CN=a\,b,O=c", r"CN=a\\,b,O=c"),
    "^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$": (
        "CN=duke,OU=ServiceUsers,O=Org,L=City,ST=State,C=DE",
        "CN=duke,OU=ServiceUsers,O=Org",
    ),
}


def test_patterns_match_as_in_java() -> None:
    matches = {pattern: [check(pattern, text) for text in texts] for pattern, texts in TABLE.items()}
    assert sum(map(any, matches.values())) == len(matches), [key for key, found in matches.items() if not any(found)]


letters = st.sampled_from("aAbB,=")
characters = letters | st.sampled_from(
    [".", r"\w", r"\W", r"\,", "[ab]", "[^a,]", "[A-a]", r"[\w=]", "é", "^", "$", r"\z"]
)


def repeated(pattern: str, quantifier: str) -> str:
    """The pattern with the quantifier, if that is supported."""
    try:
        compile_pattern(f"(?:{pattern}){quantifier}")
    except ValueError:
        return pattern
    return f"(?:{pattern}){quantifier}" if len(pattern) != 1 else f"{pattern}{quantifier}"


quantifiers = st.sampled_from(["*", "+", "?", "*?", "+?", "??", "{2}", "{1,2}", "{0,2}?", "{1,}"])
patterns = st.recursive(
    characters,
    lambda inner: (
        st.builds("({})".format, inner)
        | st.builds("(?:{})".format, inner)
        | st.builds("(?i:{})".format, inner)
        | st.builds("{}|{}".format, inner, inner)
        | st.builds("{}{}".format, inner, inner)
        | st.builds(repeated, inner, quantifiers)
        | st.builds(lambda part, sign: repeated(f"({part})", sign), inner, quantifiers)
    ),
    max_leaves=8,
)
texts = st.text(st.sampled_from("aAbB,=é\n\r"), max_size=8)


@given(patterns, st.lists(texts, min_size=1, max_size=5))
def test_random_patterns_match_as_in_java(pattern: str, samples: list[str]) -> None:
    for text in samples:
        check(pattern, text)


UNSUPPORTED = {
    "(a": "a group that is not closed, at character 3 of the pattern",
    "a)": "a closing parenthesis without an opening one",
    "*a": r"\* without anything to repeat",
    "a**": r"\* without anything to repeat",
    "a{2}{3}": "{ without anything to repeat",
    "{2}": "{ without anything to repeat",
    "a{x}": "a quantifier that is not",
    "a{,2}": "a quantifier that is not",
    "a{2": "a quantifier that is not",
    "a{2,1}": "a quantifier whose maximum is below its minimum",
    "a++": "possessive quantifiers",
    "(?>a)": "atomic groups",
    "(?=a)": "lookahead",
    "(?!a)": "lookahead",
    "(?<=a)": "lookbehind",
    "(?<!a)": "lookbehind",
    "(?s)a": "flags other than",
    "(?-i)a": "flags other than",
    "(?<a": "a group's name",
    "(?<é>a)": "a group's name",
    "(?<a>b)(?<a>c)": "a second group with the name a",
    r"(a)\1": r"\\1 is not supported",
    r"(?<a>b)\k<a>": r"\\k is not supported",
    r"\bfoo": r"\\b is not supported",
    r"\p{L}": r"\\p is not supported",
    r"\Qa\E": r"\\Q is not supported",
    r"\0101": r"\\0 is not supported",
    r"\x4": r"\\x without 2 hexadecimal digits",
    r"\u12": r"\\u without 4 hexadecimal digits",
    "a\\": "a backslash without a character",
    "[a": "a class that is not closed",
    "[": "a class that is not closed",
    "[]a]": "a class that begins with ]",
    "[^]a]": "a class that begins with ]",
    "[b-a]": "an invalid range",
    r"[a-\d]": "an invalid range",
    "[a[b]]": "classes within classes",
    "[a&&b]": "classes within classes",
    "(a*)*": "a repeat of something that can be empty",
    "(?:a|){2}": "a repeat of something that can be empty",
    "^*": "a repeat of something that can be empty",
    "(?:(a))*": "groups within a repeat are not supported",
    "(a(b)){2}": "groups within a repeat are not supported",
    "a{300}": f"more than {MAX_STATES} states",
    "(?:a{15}){30}": f"more than {MAX_STATES} states",
    "a" * (MAX_STATES + 1): f"more than {MAX_STATES} states",
    "(" * (MAX_NESTING + 1) + "a" + ")" * (MAX_NESTING + 1): f"nested more than {MAX_NESTING} times",
    "a{999999999}": f"more than {MAX_STATES} states",
    "a{9999999999}": "a quantifier that is not",
}


def test_what_is_not_supported_is_refused_with_its_reason() -> None:
    for pattern, reason in UNSUPPORTED.items():
        with pytest.raises(ValueError, match=reason):
            compile_pattern(pattern)


@given(st.text(st.sampled_from(r"ab()[]{}*+?|^$.\-,&0123:<>=!idDwWsSxuAzQ"), max_size=20), texts)
def test_what_java_refuses_is_refused(pattern: str, text: str) -> None:
    """Any text is refused, or has the same matches as in Java."""
    try:
        compile_pattern(pattern)
    except ValueError:
        return
    check(pattern, text)


EXPONENTIAL = ("(a+)+b", "(?:a|a)*b", "(?:a|aa)+b", "(?:a{1,3}){1,3}b", "(?:.|a|,)*b", "(.*)=(.*)=(.*)b")
"""Patterns for which backtracking takes exponential or cubic time, with texts that nearly match."""


def test_the_time_is_bounded() -> None:
    for pattern in EXPONENTIAL:
        compiled = compile_pattern(pattern)
        for text in ("a" * MAX_PRINCIPAL_CHARACTERS, "a=" * (MAX_PRINCIPAL_CHARACTERS // 2)):
            budget = StepBudget()
            began_s = time.thread_time()
            assert not compiled.matches(text, budget)
            assert compiled.replace_all(text, lambda _spans: "!", budget) == text
            assert time.thread_time() - began_s < 1


def test_a_match_with_too_many_steps_is_given_up() -> None:
    text = "=a" * (MAX_PRINCIPAL_CHARACTERS // 2)
    with pytest.raises(StepsExceededError, match=f"more than {MAX_STEPS} steps"):
        compile_pattern("(?:.+){25}b").matches(text, StepBudget())
    searching = compile_pattern("=a=a=.*X|=a")  # from each match on through the whole rest
    with pytest.raises(StepsExceededError, match=f"more than {MAX_STEPS} steps"):
        searching.replace_all(text, lambda _spans: "", StepBudget())


def test_matches_share_a_budget() -> None:
    compiled, budget = compile_pattern("a*"), StepBudget()
    assert compiled.matches("a" * 100, budget)
    used = MAX_STEPS - budget.left
    assert 200 < used < 400
    for _ in range(MAX_STEPS // used - 1):
        assert compiled.matches("a" * 100, budget)
    with pytest.raises(StepsExceededError):
        compiled.matches("a" * 100, budget)
